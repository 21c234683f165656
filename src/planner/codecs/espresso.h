// SPDX-License-Identifier: Apache-2.0
// What the public selector of Espresso (zhuangwang93/Espresso, simulator_espresso.py) decides of
// the gradients of a model: its decisions are what the paper's runs were made with, though it is
// not the paper's algorithm, which is in planner/codecs/codecs.h. Thresholds of size stand in place
// of the tree of options, and of every gap it counts what is left over after whole milliseconds.
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

/// What is decided, and for which cluster and codec.
struct EspressoInput {
  int64_t nodes = 2, gpus_per_node = 8;
  bool nvlink = false;     ///< inside of a node; else PCIe
  bool two_level = false;  ///< codes inside of nodes, too
  bool cpu = false;        ///< CPUs may encode
  bool sparse = true;   ///< the codec keeps some elements, with their indices; else 1 bit of each
  double ratio = 0.01;  ///< sparse: of the elements
  /// Microseconds of one gradient by option (0 to 3): to encode and decode, and of these to decode.
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

/// The decisions, one a tensor. Error: four times by option are expected, or CPUs have too many
/// choices to try them all.
std::vector<EspressoOption> espresso_options(const EspressoInput& input);

}  // namespace hocket::planner
