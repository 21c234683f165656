// SPDX-License-Identifier: Apache-2.0
// Operands of a collective where only one member's memory is local: data received from others is
// placed so that the op's record can read it as if all memory were local.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/comm_op.h"
#include "collectives/exchange.h"
#include "comm/communicator.h"
#include "comm/transport.h"

namespace hocket::comm {

/// Returns the address of a slice of a member's operands.
void* address_of(const Operands& operands, const Slice& slice);

/// Operands of another member, as far as they were received. Memory covers each operand from the
/// first byte read to the last; the operand's address lies before it.
class Copies {
 public:
  Copies(size_t inputs, size_t outputs) : in_(inputs), out_(outputs) {}
  Copies(Copies&&) = default;
  /// Sets an input that is the same on all members (sizes).
  void set_in(size_t operand, void* data) { in_[operand] = data; }
  /// Allocates memory for slices to be received.
  void allocate(const std::vector<Slice>& slices);
  /// Uses received data in place: `data` holds slices that are contiguous in the operand.
  void set(const Slice& first, std::byte* data);
  Operands operands() const { return {in_, out_}; }

 private:
  std::vector<Message> memory_;
  std::vector<void*> in_, out_;
};

/// Operands of all members of a call's group, in the form that Op::run takes.
class Members {
 public:
  /// Constructs the operands as seen by `rank`, a member of the group with the call's operands, for
  /// `part` of `parts` of the collective.
  Members(const Call& call, const Op& op, int32_t rank, int64_t part = 0, int64_t parts = 1);
  size_t size() const { return operands_.size(); }
  size_t me() const { return me_; }
  const Operands& of(size_t member) const { return operands_[member]; }
  /// Allocates memory for slices to be received from another member.
  void allocate(size_t member, const std::vector<Slice>& slices) {
    copies_[member].allocate(slices);
  }
  void set(size_t member, const Slice& first, std::byte* data) { copies_[member].set(first, data); }
  CollectiveArgs args() const;

 private:
  const Call& call_;
  const int64_t part_, parts_;
  const size_t me_;
  std::vector<Copies> copies_;
  std::vector<Operands> operands_;
};

}  // namespace hocket::comm
