// SPDX-License-Identifier: Apache-2.0
// Abstract interpretation of a program's tasks: derives the value of every buffer, and compares it
// with the single-device step.
//
// A value is a pair (term, piece). The *term* is the value's meaning: a parameter before the step,
// an input of a micro-batch, an op applied to terms, or a sum (a multiset of terms). Equal terms
// have equal ids, so a comparison is one comparison of integers. The *piece* is each rank's part of
// the term: per dim the indices (a *cut*), and per unfinished reduction the addends that are in (a
// *set*). Both are functions of the rank's coordinates. The buffer of a rank is the sum over its
// addends of the term restricted to its cuts. Example: the weight gradient of a linear layer under
// dp=2, before its all-reduce, is the term linear_dw(dy, x), with whole cuts on both dims, and as
// addends the tokens [0, 512) on rank 0 and [512, 1024) on rank 1.
//
// Compute tasks make terms, and take pieces by the index notation of their op: every letter has one
// cut in all inputs, and an output is a partial sum over every cut letter that it lacks.
// Communication moves pieces and keeps terms. An application that the single-device step does not
// contain is refused at the task that makes it; its outputs become unknown, so that nothing is
// reported twice. After the last task every named buffer must hold the reference's term in its
// declared layout (docs/check.md).
//
//   ValueAlgebra   sums of values; owns Pieces, Packs (several tensors in
//                  one flat buffer) and CodecMarks (losses of codecs)
//   ValueText      values in words
//   BufferState    the value of every buffer, with the regions of buffers that have views
//   Refusals       reports of refused tasks and buffers
//   TaskIo         reads and writes on behalf of a task
//   LocalOps, Collectives, RoleTransfers   interpretation of one sort of task each
//   NamedBuffers, Replicas                 named inputs and outputs of the step
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "check/values/collectives.h"
#include "check/values/local_ops.h"
#include "check/values/machine.h"
#include "check/values/named_buffers.h"
#include "check/values/transfers.h"

namespace hocket::check {

class Interpreter {
 public:
  /// Requires: all arguments outlive it.
  Interpreter(Context& ctx, Reference& reference, const Hazards& hazards);

  /// Interprets a task that waits for no other class: a local op, a collective inside a class, a
  /// message. `global`: its number over all classes (Context::global).
  /// `senders`: for a recv, the global numbers of the matching sends. Requires: the senders were
  /// interpreted before.
  void step(ClassId cls, TaskId task, int32_t global, std::span<const int32_t> senders);
  /// Interprets one collective that crosses classes: the tasks that meet in each sort of instance.
  void step_across_classes(std::span<const std::vector<TaskRef>> instances);
  /// Marks a buffer with content that follows from something already refused.
  void invalidate(ClassId cls, BufferId buffer) { m_.io.invalidate(cls, buffer); }
  /// Requires: the last task was interpreted. Compares named buffers with the single-device step.
  void finish() { named_.finish(); }

  /// Experts of the whole tensors behind a kind's rows; 0 if no task of the kind had any.
  int64_t experts(program::KindId kind) const { return local_.experts(kind); }
  /// Returns the least factor above balanced routing that a ragged buffer expects (TaskIo).
  double least_factor() const { return m_.io.least_factor(); }
  /// Losses of codecs in named buffers, after finish().
  const std::vector<CodecLoss>& losses() const { return named_.replicas().losses(); }
  std::vector<CodecUse> codec_uses() const { return named_.replicas().codec_uses(); }

 private:
  const graph::Shift& to_peer(ClassId cls, const Task& end);
  void receive(TaskRef ref, const Task& end, const Value& value);

  Machine m_;
  LocalOps local_;
  Collectives collectives_;
  RoleTransfers transfers_;
  NamedBuffers named_;
  std::map<int32_t, Value> sent_;  ///< by global task of the send
  /// By role and peer mapping: the shift from a rank to the rank that it receives from.
  std::map<std::pair<program::RoleId, program::PeerMap>, graph::Shift> to_peers_;
};

}  // namespace hocket::check
