// SPDX-License-Identifier: Apache-2.0
// Backend with lambdas as kernels, and hand-made programs, for tests of the runtime.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "program/program.h"

namespace hocket::fake {

using Body = std::function<void(const kernels::KernelArgs&)>;

/// Kernels by number; op "fake" with attribute `body`.
class Backend : public kernels::Backend {
 public:
  std::string describe() const override { return "fakes"; }
  kernels::KernelFn find(std::string_view op, kernels::Device,
                         const kernels::OperandTypes&) const override;
  void enter_thread(int num_threads) override;
  /// Thread counts that lanes requested.
  std::vector<int> entered() const;

 private:
  mutable std::mutex mutex_;
  std::vector<int> entered_;
};

/// Registers a body for the life of the process.
int64_t add_body(Body body);

/// Builds a program task by task; every stage is a rank class.
class Builder {
 public:
  explicit Builder(int stages = 1, int dp = 1);

  program::BufferId buffer(int stage, graph::TensorType type);
  program::BufferId named(int stage, program::BufferKind kind, std::string name,
                          graph::TensorType type, int32_t micro_batch = program::kNone);
  program::TaskId task(int stage, program::Lane lane, std::vector<program::BufferId> in,
                       std::vector<program::BufferId> out, Body body, int64_t workspace = 0);
  program::TaskId all_reduce(int stage, program::Lane lane, program::BufferId buffer);
  program::TaskId send(int stage, program::BufferId from, int32_t to_stage, int32_t tag);
  program::TaskId recv(int stage, program::BufferId to, int32_t from_stage, int32_t tag);
  /// Adds a message along any axis (0: stages, 1: the ranks of a stage) to or from the peer at
  /// `offset`.
  program::TaskId send_along(int stage, int32_t axis, int32_t offset, program::BufferId from,
                             int32_t tag);
  program::TaskId recv_along(int stage, int32_t axis, int32_t offset, program::BufferId to,
                             int32_t tag);

  program::Task& last(int stage) { return program_.classes[stage].tasks.back(); }
  /// Adds dependencies and the memory plan.
  program::Program finish();
  program::Program& raw() { return program_; }

 private:
  program::TaskId add(int stage, program::Kind kind, program::Task task);
  program::RankClass& at(int stage) { return program_.classes[stage]; }
  std::vector<graph::TensorType> types(int stage, const std::vector<program::BufferId>& ids);
  program::Program program_;
};

inline graph::TensorType i64s(int64_t n) { return {graph::DType::i64, {n}}; }
inline graph::TensorType f64s(int64_t n) { return {graph::DType::f64, {n}}; }

}  // namespace hocket::fake
