// SPDX-License-Identifier: Apache-2.0
// Runs one CPU kernel the hard way: operands and workspace between guard
// bytes, outputs and workspace full of NaN, on 1 and on 3 threads with equal bits, inputs intact.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "graph/tensor_type.h"
#include "kernels/abi.h"

namespace hocket::test {

using graph::Attrs;
using graph::DType;
using graph::TensorType;

/// A tensor of any dtype with its values as doubles. A routed one holds exactly its rows. f64
/// stands for the compute dtype unless `fixed` (losses, norms, hyperparameters: always f64).
struct Values {
  TensorType type;
  std::vector<double> v;
  bool fixed = false;
  double& operator[](int64_t i) { return v[i]; }
  double operator[](int64_t i) const { return v[i]; }
};

/// Random numbers of the tests: the seed is fixed, every test makes its own.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 2654435769u + 1) {}
  double uniform();  ///< [0, 1)
  double normal();
  int64_t below(int64_t n);  ///< {0..n-1}
  Values normals(graph::Dims dims, double scale = 1);
  Values positions(int64_t tokens, int64_t longest);  ///< packed documents of 1..longest tokens

 private:
  uint64_t state_;
};

Values zeros(graph::Dims dims, DType dtype = DType::f64);
Values integers(std::vector<double> v, DType dtype = DType::i32);
Values fixed(std::vector<double> v);  ///< f64 whatever the compute dtype
/// A routed tensor [experts, tokens, features..]@k with `rows` normal rows.
Values routed(Random& random, graph::Dims dims, int32_t k, int64_t rows);

struct Call {
  std::string op;
  Attrs attrs = {};
  std::vector<Values> in;
  std::vector<Values> out;  ///< types; values only where `accumulate` has the output's bit
  uint32_t accumulate = 0;
  std::vector<std::pair<int, int>> inplace = {};  ///< (input, output) sharing a buffer
  std::vector<kernels::LetterOffset> piece_offsets = {};
};

/// Runs the call in compute dtype `dtype` and returns the outputs.
std::vector<Values> run(const Call& call, DType dtype);

/// Calls check(dtype, tolerance) for f64 and f32, on the kernels of every instruction set that this
/// processor supports.
void for_both(const std::function<void(DType, double)>& check);

/// Expects got == want within `tolerance` times the largest |want| (at least 1e-2).
void expect_close(const Values& got, const std::vector<double>& want, double tolerance,
                  const std::string& what);

}  // namespace hocket::test
