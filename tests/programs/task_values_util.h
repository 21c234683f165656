// SPDX-License-Identifier: Apache-2.0
// Compares every complete value of a program while it runs. If the check calls the value of a
// written buffer a term of the reference with all its addends, also during the step, the data must
// equal the result of kernels on whole tensors.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "check/check.h"
#include "check/reference.h"
#include "check/values/held.h"
#include "program/program.h"

namespace hocket::test {

/// A whole tensor.
struct Whole {
  graph::TensorType type;
  std::vector<std::byte> bytes;
  std::vector<double> numbers;  ///< its elements
  double norm = 0;
};

/// The terms of a reference as whole tensors, of random inputs that the seed decides.
class TermValues {
 public:
  explicit TermValues(uint64_t seed) : seed_(seed) {}
  /// Returns null for terms without a value of their own (codes, sizes of an exchange, packs).
  const Whole* of(const check::Reference& reference, check::ExprId expr);

 private:
  const Whole* make(const check::Reference& reference, check::ExprId expr);
  void apply(const check::Reference& reference, check::AppId id);
  uint64_t seed_;
  std::map<check::ExprId, std::unique_ptr<Whole>> known_;
};

/// Expected contents of every output of an accepted program's tasks, by the check.
class ExpectedOutputs {
 public:
  /// Checks the program; `accepted` holds the verdict.
  ExpectedOutputs(check::Checker& checker, const program::Program& program, TermValues& terms);
  bool accepted() const { return accepted_; }

  /// Returns "", or the task and rank that wrote other data than the term's. May be called
  /// concurrently. `data`: by row-major elements, `strides` apart (empty: contiguous).
  std::string compare(int32_t rank, program::ClassId cls, program::TaskId task, size_t output,
                      const graph::TensorType& type, const void* data,
                      const std::vector<int64_t>& strides) const;
  /// Counts over all ranks: complete values, and elements of them.
  int64_t values() const { return values_; }
  int64_t elements() const { return elements_; }

 private:
  /// One after the other in memory: whole tensors and elements of them.
  struct Expected {
    std::vector<std::pair<const Whole*, int64_t>> at;  ///< null: a zero
  };
  void note(const check::OutputValue& written, const program::Program& program, TermValues& terms);
  static std::vector<int64_t> indices(const check::Held& held, const Whole& whole,
                                      const Whole* experts);

  bool accepted_ = false;
  int64_t values_ = 0, elements_ = 0;
  /// By class, task and output; by rank.
  std::map<std::tuple<int32_t, int32_t, size_t>, std::map<int32_t, Expected>> expected_;
};

}  // namespace hocket::test
