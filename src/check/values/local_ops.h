// SPDX-License-Identifier: Apache-2.0
// Interpretation of local tasks: compute ops, sums, copies, merges, regroups, encoders, decoders.
// The term of an output comes from the terms of the inputs, its piece from their pieces.
#pragma once

#include <vector>

#include "check/values/machine.h"

namespace hocket::check {

class LocalOps {
 public:
  explicit LocalOps(Machine& machine);

  void step(ClassId cls, TaskId task);
  /// Experts of the whole tensors behind a kind's rows; 0 if no task of the kind had any.
  int64_t experts(program::KindId kind) const { return experts_[kind]; }

 private:
  /// A kind's rule applied to pieces of its inputs, and the result.
  struct Signature {
    std::vector<PieceId> in;
    std::vector<TypeId> in_types;  ///< logical
    std::vector<program::PieceOffset> piece_offsets;
    ClassId cls = program::kNone;  ///< class of the offsets; kNone: the op takes no positions
    LocalOpResult taken;
    std::vector<TypeId> fitting;  ///< by output: see TaskIo::write
  };
  Signature& signature(ClassId cls, const Task& task, const KindInfo& info);
  void compute(TaskRef ref, const Task& task, const KindInfo& info);
  void compute_packs(TaskRef ref, const Task& task, const KindInfo& info);
  void add_inputs(TaskRef ref, const Task& task);
  void merge(TaskRef ref, const Task& task, const KindInfo& info);
  void regroup(TaskRef ref, const Task& task);
  void refuse_begin(TaskRef ref, const RankFault& wrong);

  // Codecs (codec_ops.cc). An encoder makes codes of its operand's term, in the operand's piece.
  // Codes are moved like any value, but never added up. A decoder returns the term, in the piece in
  // which its codes then lie, marked if the codec is lossy.
  void encode(TaskRef ref, const Task& task, const KindInfo& info);
  void decode(TaskRef ref, const Task& task, const KindInfo& info);
  std::vector<PieceId> coded_pieces(TaskRef ref, const Task& task, const KindInfo& info);

  Machine& m_;
  Operands in_;                                     ///< of the task at hand
  std::vector<std::vector<Signature>> signatures_;  ///< by kind
  std::vector<int64_t> experts_;                    ///< by kind
};

}  // namespace hocket::check
