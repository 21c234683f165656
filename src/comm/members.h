// SPDX-License-Identifier: Apache-2.0
// A collective where only the memory of one member is at hand: what came of the others lies in
// copies, at which the op's record finds it as if all were there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/comm_op.h"
#include "collectives/exchange.h"
#include "comm/communicator.h"
#include "comm/wire.h"

namespace hocket::comm {

/// Where a slice of a member's operands lies.
void* place(const Operands& operands, const Slice& slice);

/// The operands of another member, as far as they came. What is read of an operand lies in memory
/// of this process from its first byte to its last; the operand itself begins before it.
class Copies {
 public:
  Copies(size_t inputs, size_t outputs) : in_(inputs), out_(outputs) {}
  Copies(Copies&&) = default;
  /// Sizes are the same on all members.
  void set_in(size_t operand, void* data) { in_[operand] = data; }
  /// Makes room for what comes.
  void expect(const std::vector<Slice>& slices);
  /// Or it came already, and lies at `data`, neighbours in the operand one after the other.
  void set(const Slice& first, std::byte* data);
  Operands operands() const { return {in_, out_}; }

 private:
  std::vector<Message> memory_;
  std::vector<void*> in_, out_;
};

/// All members of a call's group, as Op::run wants them.
class Members {
 public:
  /// `rank`, which is in the group, has the call's operands; of the collective it is `part` of
  /// `parts`.
  Members(const Call& call, const Op& op, int32_t rank, int64_t part = 0, int64_t parts = 1);
  size_t size() const { return operands_.size(); }
  size_t me() const { return me_; }
  const Operands& of(size_t member) const { return operands_[member]; }
  /// Makes room for what comes of another member.
  void expect(size_t member, const std::vector<Slice>& slices) { copies_[member].expect(slices); }
  void set(size_t member, const Slice& first, std::byte* data) { copies_[member].set(first, data); }
  Together together() const;

 private:
  const Call& call_;
  const int64_t part_, parts_;
  const size_t me_;
  std::vector<Copies> copies_;
  std::vector<Operands> operands_;
};

}  // namespace hocket::comm
