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

/// What is gathered or scattered is as much of every member as of each other.
bool parts_are_alike(const program::Kind& kind, const Op& op, size_t members) {
  if (is_gathering(op)) return !kind.attrs.has("size");
  if (!is_reduction(op) || op.move.part == Move::Part::whole) return true;
  const auto dim = static_cast<size_t>(movement(op, kind.attrs).part_dim);
  return std::all_of(kind.in.begin(), kind.in.end(), [&](const TensorType& type) {
    return type.dims[dim].divides_into(static_cast<int64_t>(members));
  });
}

bool takes_greatest(const Call& call) { return monoid_of(call.kind->attrs) == graph::Monoid::max; }

Scratch scratch(int64_t bytes) { return std::make_shared<Message>(bytes); }

/// A tensor that is cut along a dim into a block for each member: runs of all members, one after
/// the other, of which a block has `outer`.
struct Cut {
  int64_t members = 1, outer = 1, row = 0;  ///< runs of a block, and the bytes of one

  Cut(const TensorType& block, int dim, int64_t members) : members(members) {
    const Blocks blocks = comm::blocks(block, dim);
    outer = blocks.outer;
    row = block.bytes_of(blocks.inner);
  }
  int64_t block_bytes() const { return outer * row; }
  /// Calls `copy` with a member and where its runs lie in the tensor, and in its block.
  template <class Copy>
  void each(Copy copy) const {
    for (int64_t o = 0; o < outer; ++o) {
      for (int64_t member = 0; member < members; ++member) {
        copy(member, (o * members + member) * row, o * row);
      }
    }
  }
};

/// Operands of one type, and where each begins in what a member has of them together.
struct Flat {
  std::vector<size_t> operands;
  std::vector<int64_t> begins;
  int64_t bytes = 0;
  Scratch in, out;
  std::unique_ptr<Incoming> begun;
};

/// The operands by type, which are summed as one flat piece of memory each.
std::map<graph::DType, Flat> by_type(std::span<const TensorType> types) {
  std::map<graph::DType, Flat> flats;
  for (size_t i = 0; i < types.size(); ++i) {
    Flat& flat = flats[types[i].dtype];
    flat.operands.push_back(i);
    flat.begins.push_back(flat.bytes);
    flat.bytes += types[i].bytes();
  }
  std::erase_if(flats, [](const auto& flat) { return flat.second.bytes == 0; });
  return flats;
}

/// Calls `copy` with the number of every operand, and its memory in `flat`.
template <class Copy>
void each_operand(const Flat& flat, const Scratch& memory, Copy copy) {
  for (size_t i = 0; i < flat.operands.size(); ++i) {
    copy(flat.operands[i], memory->data.get() + flat.begins[i]);
  }
}

std::byte* bytes_of(void* operand) { return static_cast<std::byte*>(operand); }

void all_reduce(const Call& call, Team& team, const Wait& wait) {
  const std::vector<TensorType>& types = call.kind->in;
  std::map<graph::DType, Flat> flats = by_type(types);
  for (auto& [dtype, flat] : flats) {
    flat.in = scratch(flat.bytes);
    each_operand(flat, flat.in,
                 [&](size_t i, std::byte* at) { copy_bytes(at, call.in[i], types[i].bytes()); });
    flat.begun = team.all_reduce(flat.in, *number_of(dtype), takes_greatest(call));
  }
  for (auto& [dtype, flat] : flats) {
    wait(*flat.begun);
    each_operand(flat, flat.in,
                 [&](size_t i, std::byte* at) { copy_bytes(call.out[i], at, types[i].bytes()); });
  }
}

void reduce_scatter(const Call& call, const Op& op, Team& team, const Wait& wait) {
  const std::vector<TensorType>& blocks = call.kind->out;
  const int dim = movement(op, call.kind->attrs).part_dim;
  const int64_t n = std::ssize(call.members);
  std::map<graph::DType, Flat> flats = by_type(blocks);
  for (auto& [dtype, flat] : flats) {
    flat.in = scratch(n * flat.bytes);
    flat.out = scratch(flat.bytes);
    each_operand(flat, flat.in, [&, bytes = flat.bytes](size_t i, std::byte* first) {
      const Cut cut(blocks[i], dim, n);
      cut.each([&](int64_t member, int64_t in_tensor, int64_t in_block) {
        copy_bytes(first + member * bytes + in_block, bytes_of(call.in[i]) + in_tensor, cut.row);
      });
    });
    flat.begun = team.reduce_scatter(flat.in, flat.out, *number_of(dtype), takes_greatest(call));
  }
  for (auto& [dtype, flat] : flats) {
    wait(*flat.begun);
    each_operand(flat, flat.out,
                 [&](size_t i, std::byte* at) { copy_bytes(call.out[i], at, blocks[i].bytes()); });
  }
}

void all_gather(const Call& call, const Op& op, Team& team, const Wait& wait) {
  const std::vector<TensorType>& blocks = call.kind->in;
  const int dim = movement(op, call.kind->attrs).slot_dim;
  const int64_t n = std::ssize(call.members);
  const int64_t bytes = total_bytes(blocks);
  if (bytes == 0) return;
  const Scratch in = scratch(bytes), out = scratch(n * bytes);
  int64_t begin = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    copy_bytes(in->data.get() + begin, call.in[i], blocks[i].bytes());
    begin += blocks[i].bytes();
  }
  wait(*team.all_gather(in, out));
  begin = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const Cut cut(blocks[i], dim, n);
    cut.each([&](int64_t member, int64_t in_tensor, int64_t in_block) {
      copy_bytes(bytes_of(call.out[i]) + in_tensor,
                 out->data.get() + member * bytes + begin + in_block, cut.row);
    });
    begin += cut.block_bytes();
  }
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

bool transport_has(const program::Kind& kind, const Op& op, size_t members) {
  if (op.role != Role::collective || !parts_are_alike(kind, op, members)) return false;
  if (!is_reduction(op)) return is_gathering(op) || op.phases == 1;
  return monoid_of(kind.attrs) != graph::Monoid::softmax &&
         std::all_of(kind.in.begin(), kind.in.end(),
                     [](const TensorType& type) { return number_of(type.dtype).has_value(); });
}

void run_by_transport(const Call& call, const Op& op, int32_t rank, Team& team, const Wait& wait) {
  if (is_reduction(op)) {
    return op.move.part == Move::Part::whole ? all_reduce(call, team, wait)
                                             : reduce_scatter(call, op, team, wait);
  }
  if (is_gathering(op)) return all_gather(call, op, team, wait);
  all_to_all(call, op, rank, team, wait);
}

}  // namespace hocket::comm
