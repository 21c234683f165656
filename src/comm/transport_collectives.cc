// SPDX-License-Identifier: Apache-2.0
#include "comm/transport_collectives.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "comm/members.h"
#include "comm/ops/parts.h"

namespace hocket::comm {

namespace {

using Wait = std::function<void(Incoming&)>;

std::optional<Number> number_of(graph::DType dtype) {
  switch (dtype) {
    case graph::DType::f32:
      return Number::f32;
    case graph::DType::f64:
      return Number::f64;
    case graph::DType::i32:
      return Number::i32;
    case graph::DType::i64:
      return Number::i64;
    default:
      return std::nullopt;
  }
}

/// Parts of dense values are added up, or the greatest is taken.
bool is_reduction(const Op& op) { return op.move.placed == Move::Placed::sum && !op.makes_sizes; }

bool is_gathering(const Op& op) {
  return op.move.placed == Move::Placed::slot && op.move.part == Move::Part::whole;
}

bool takes_greatest(const Call& call) { return monoid_of(call.kind->attrs) == graph::Monoid::max; }

Scratch scratch(int64_t bytes) { return std::make_shared<Message>(bytes); }

/// Blocks of a tensor that is cut along a dim into one for each member: as they lie in it, one run
/// of every member after the other, and as the transport has them, all of a member together.
struct Cut {
  int64_t members = 1, outer = 1, row = 0;  ///< runs of a block, and the bytes of one

  Cut(const TensorType& block, int dim, int64_t members) : members(members) {
    const Blocks blocks = comm::blocks(block, dim);
    outer = blocks.outer;
    row = block.bytes_of(blocks.inner);
  }
  int64_t block_bytes() const { return outer * row; }
  /// Calls `copy` with the place of every run in the tensor, and in the blocks.
  template <class Copy>
  void each(Copy copy) const {
    for (int64_t o = 0; o < outer; ++o) {
      for (int64_t member = 0; member < members; ++member) {
        copy((o * members + member) * row, (member * outer + o) * row);
      }
    }
  }
};

/// Operands of one type are summed as one flat piece of memory.
void all_reduce(const Call& call, Team& team, const Wait& wait) {
  struct Sum {
    std::vector<size_t> operands;
    Scratch flat;
    std::unique_ptr<Incoming> begun;
  };
  const std::vector<TensorType>& types = call.kind->in;
  std::map<graph::DType, Sum> sums;
  for (size_t i = 0; i < types.size(); ++i) {
    sums[types[i].dtype].operands.push_back(i);
  }
  for (auto& [dtype, sum] : sums) {
    int64_t bytes = 0;
    for (const size_t i : sum.operands) {
      bytes += types[i].bytes();
    }
    if (bytes == 0) continue;
    sum.flat = scratch(bytes);
    std::byte* at = sum.flat->data.get();
    for (const size_t i : sum.operands) {
      copy_bytes(at, call.in[i], types[i].bytes());
      at += types[i].bytes();
    }
    sum.begun = team.all_reduce(sum.flat, *number_of(dtype), takes_greatest(call));
  }
  for (auto& [dtype, sum] : sums) {
    if (!sum.begun) continue;
    wait(*sum.begun);
    const std::byte* at = sum.flat->data.get();
    for (const size_t i : sum.operands) {
      copy_bytes(call.out[i], at, types[i].bytes());
      at += types[i].bytes();
    }
  }
}

void reduce_scatter(const Call& call, const Op& op, Team& team, const Wait& wait) {
  const TensorType& block = call.kind->out[0];
  const int dim = movement(op, call.kind->attrs).part_dim;
  const Cut cut(block, dim, std::ssize(call.members));
  if (cut.block_bytes() == 0) return;
  const Scratch in = scratch(cut.members * cut.block_bytes());
  const Scratch out = scratch(cut.block_bytes());
  cut.each([&](int64_t in_tensor, int64_t in_blocks) {
    copy_bytes(in->data.get() + in_blocks, static_cast<std::byte*>(call.in[0]) + in_tensor,
               cut.row);
  });
  wait(*team.reduce_scatter(in, out, *number_of(block.dtype), takes_greatest(call)));
  copy_bytes(call.out[0], out->data.get(), out->bytes);
}

void all_gather(const Call& call, const Op& op, Team& team, const Wait& wait) {
  const TensorType& block = call.kind->in[0];
  const int dim = movement(op, call.kind->attrs).slot_dim;
  const Cut cut(block, dim, std::ssize(call.members));
  if (cut.block_bytes() == 0) return;
  const Scratch in = scratch(cut.block_bytes());
  const Scratch out = scratch(cut.members * cut.block_bytes());
  copy_bytes(in->data.get(), call.in[0], in->bytes);
  wait(*team.all_gather(in, out));
  cut.each([&](int64_t in_tensor, int64_t in_blocks) {
    copy_bytes(static_cast<std::byte*>(call.out[0]) + in_tensor, out->data.get() + in_blocks,
               cut.row);
  });
}

/// Every member sends what each other one reads of it, and then does its part by the record.
void all_to_all(const Call& call, const Op& op, int32_t rank, Team& team, const Wait& wait) {
  Members members(call, op, rank);
  const size_t n = members.size(), me = members.me();
  const Together all = members.together();
  std::vector<std::vector<Slice>> gives(n), takes(n);
  std::vector<int64_t> bytes_to(n), bytes_from(n);
  int64_t sent = 0, received = 0;
  for (size_t other = 0; other < n; ++other) {
    if (other == me) continue;
    gives[other] = op.reads(all, me, other, 0);
    takes[other] = op.reads(all, other, me, 0);
    sent += bytes_to[other] = total(gives[other]);
    received += bytes_from[other] = total(takes[other]);
    members.expect(other, takes[other]);
  }
  const Scratch in = scratch(sent), out = scratch(received);
  std::byte* into = in->data.get();
  for (const std::vector<Slice>& slices : gives) {
    for (const Slice& slice : slices) {
      copy_bytes(into, place(members.of(me), slice), slice.bytes);
      into += slice.bytes;
    }
  }
  wait(*team.all_to_all(in, bytes_to, out, bytes_from));
  const std::byte* from = out->data.get();
  for (size_t other = 0; other < n; ++other) {
    for (const Slice& slice : takes[other]) {
      copy_bytes(place(members.of(other), slice), from, slice.bytes);
      from += slice.bytes;
    }
  }
  op.run(members.together(), me, 0);
}

}  // namespace

bool transport_has(const program::Kind& kind, const Op& op) {
  if (op.role != Role::collective) return false;
  if (!is_reduction(op)) return is_gathering(op) || op.phases == 1;
  return monoid_of(kind.attrs) != graph::Monoid::softmax &&
         std::all_of(kind.in.begin(), kind.in.end(),
                     [](const TensorType& type) { return number_of(type.dtype).has_value(); });
}

void run_by_transport(const Call& call, const Op& op, int32_t rank, Team& team, const Wait& wait) {
  if (is_reduction(op)) {
    return op.list ? all_reduce(call, team, wait) : reduce_scatter(call, op, team, wait);
  }
  if (is_gathering(op)) return all_gather(call, op, team, wait);
  all_to_all(call, op, rank, team, wait);
}

}  // namespace hocket::comm
