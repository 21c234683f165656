// SPDX-License-Identifier: Apache-2.0
// Decisions of Espresso's public selector (zhuangwang93/Espresso, simulator_espresso.py) for a
// model's gradients. The paper's runs used it, though it is not the paper's algorithm, which is in
// planner/codecs/codecs.h. Size thresholds replace the tree of options, and gaps are counted modulo
// a millisecond.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/config.h"

namespace hocket::planner {

/// A gradient, in the order in which the backward pass makes them.
struct EspressoTensor {
  std::string name;
  int64_t elements = 0;
  int64_t gap_us = 0;  ///< since the one before; microseconds
  void fields(Fields& visit);
};

/// Gradients, cluster and codec of a decision.
struct EspressoInput {
  int64_t nodes = 2, gpus_per_node = 8;
  bool nvlink = false;     ///< inside of a node; else PCIe
  bool two_level = false;  ///< codes inside of nodes, too
  bool cpu = false;        ///< CPUs may encode
  bool sparse = true;   ///< the codec keeps some elements, with their indices; else 1 bit of each
  double ratio = 0.01;  ///< sparse: of the elements
  /// Microseconds per gradient and option (0 to 3): encoding plus decoding, and decoding alone.
  std::vector<double> codec_us{0, 0, 0, 0}, decode_us{0, 0, 0, 0};
  std::vector<EspressoTensor> tensors;
  void fields(Fields& visit);
};

/// An option of a tensor, by the numbers of the selector's files: 0 FP32; 1 FP16; 3, 4 codes
/// between nodes (all-to-all and all-gather, all-gather); 5 those of CPUs; 6, 9, 10 codes inside of
/// nodes, too.
struct EspressoOption {
  int number = 0;
  const char* what = "";
};

/// Decisions, one a tensor. Throws Error unless there are four times by option, and if CPUs have
/// too many choices to try them all.
std::vector<EspressoOption> espresso_options(const EspressoInput& input);

}  // namespace hocket::planner
