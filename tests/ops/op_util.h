// SPDX-License-Identifier: Apache-2.0
// Helpers of the generic op tests: values of a sample case, one application of an op between guard
// bytes, the gradient rule run eagerly, and values cut by a placement and put together again.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "kernels/backend.h"
#include "ops/op.h"

namespace hocket::optest {

using graph::Attrs;
using graph::DType;
using graph::Placement;
using graph::TensorType;
using ops::Op;
using ops::Sample;

/// A tensor of any dtype, its elements as doubles. A routed one holds exactly its rows.
struct Value {
  TensorType type;
  std::vector<double> v;
};

/// A sample case with its values made.
struct Problem {
  const Op* op = nullptr;
  const Sample* sample = nullptr;
  Attrs attrs;
  std::vector<Value> values;  ///< of the sample: the op's inputs first
  size_t num_inputs = 0;
  std::string name;
  std::span<const Value> inputs() const { return std::span(values).first(num_inputs); }
  std::vector<TensorType> in_types() const;
  std::vector<TensorType> out_types() const;
};

Problem make(const Op& op, const Sample& sample, uint64_t seed);
/// Rounds the op's inputs in its compute dtype to `dtype` and gives them that type; inputs in the
/// type of its sums become f32. Returns false if the op has no operand of the compute dtype.
bool to_dtype(Problem& problem, DType dtype);

struct CallOptions {
  uint32_t accumulate = 0;
  std::vector<Value> start;  ///< accumulators, one per output (only those of `accumulate` count)
  int threads = 1;
  std::vector<kernels::LetterOffset> piece_offsets;  ///< of the piece that the inputs are
  std::vector<Value> out;  ///< like the outputs; empty: of the types that the op infers
  /// Twice, between two kinds of guard bytes and over two kinds of stale outputs and workspace:
  /// guards and inputs are expected intact, the results equal to the bit.
  bool guarded = true;
};

/// Applies the op with exactly its declared workspace.
std::vector<Value> apply(const Op& op, const Attrs& attrs, std::span<const Value> in,
                         const CallOptions& call = {});

/// Runs the steps of the sample's chain that make integer values (`floats`: and the others).
void run_chain(const Sample& sample, std::vector<Value>& values, bool floats = true);

/// Gradients of the inputs by the op's rule, its nodes executed as they are emitted.
struct Gradient {
  std::vector<Value> grad;  ///< per input; v is empty where there is none
  std::vector<bool> asked;  ///< outputs with gradients that the rule reads
};
/// `grad_out`: per output, empty v for "nothing depends on it". `before`: contributions to the
/// inputs' gradients that exist already (empty: none).
Gradient gradient(const Problem& p, const std::vector<Value>& out,
                  const std::vector<Value>& grad_out, const std::vector<bool>& needs,
                  const std::vector<Value>& before = {});

/// The (expert, token) of each row of a sample's routed tensors; empty without routes.
using RowKeys = std::vector<std::pair<int64_t, int64_t>>;
RowKeys row_keys(const Problem& p);

/// Part `part` of 2 of a value. Partial values are cut into random terms.
Value cut(const Value& whole, Placement placement, int part, const RowKeys& keys, uint64_t seed);
/// The inverse; replicated parts are expected to be the same.
Value combine(const std::vector<Value>& parts, Placement placement, const TensorType& whole,
              const RowKeys& keys);

/// Indices of letters that a part has, in its order; of letters that are not among them it has all.
using Parts = std::map<char, std::vector<int64_t>>;
/// Size of each letter of an op's notation, in operands of a problem.
using Sizes = std::map<char, int64_t>;
/// Returns the places of a part's elements in the whole; `local` becomes its type. A dim that is a
/// multiple of its letter's size (heads of queries) has several neighbours for each index.
std::vector<size_t> places(const TensorType& whole, const std::string& letters, const Parts& parts,
                           const Sizes& sizes, const RowKeys& keys, TensorType* local);
Value gather(const Value& whole, const std::string& letters, const Parts& parts, const Sizes& sizes,
             const RowKeys& keys);

/// |a - b| / |b| (absolute if b is zero); infinite on NaN or other sizes.
double relative_error(const std::vector<double>& a, const std::vector<double>& b);
std::string to_string(const ops::AxisSignature& s);

/// Index notation, one alternative of Op::layout.
struct Notation {
  std::vector<std::string> in, out;
};
std::vector<Notation> notations(const Op& op);  ///< empty for "*"
/// The alternative for these operands, or null.
const Notation* matching(const std::vector<Notation>& list, std::span<const TensorType> in,
                         std::span<const TensorType> out);

}  // namespace hocket::optest
