// SPDX-License-Identifier: Apache-2.0
#include "comm/transport_collectives.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "base/math.h"
#include "collectives/implementation.h"
#include "collectives/parts.h"
#include "comm/members.h"

namespace hocket::comm {

namespace {

using Wait = std::function<void(Request&)>;

/// Converts a type that by_transport accepts for reductions.
ReduceType reduce_type_of(graph::DType dtype) {
  switch (dtype) {
    case graph::DType::f32:
      return ReduceType::f32;
    case graph::DType::f64:
      return ReduceType::f64;
    case graph::DType::bf16:
      return ReduceType::bf16;
    case graph::DType::f16:
      return ReduceType::f16;
    case graph::DType::i32:
      return ReduceType::i32;
    default:
      HOCKET_CHECK(dtype == graph::DType::i64, "sums of {}", graph::to_string(dtype));
      return ReduceType::i64;
  }
}

bool takes_greatest(const Call& call) { return monoid_of(call.kind->attrs) == graph::Monoid::max; }

/// Returns the size that a part takes of a ScratchSpace.
int64_t aligned(int64_t bytes) { return round_up(bytes, kScratchAlign); }

/// Tensor that is split along a dim into a block per member. It interleaves the members' runs; a
/// block has `outer` runs.
struct Cut {
  int64_t members = 1, outer = 1, row = 0;  ///< runs per block, and the bytes of a run

  Cut(const TensorType& block, int dim, int64_t members) : members(members) {
    const Blocks blocks = comm::blocks(block, dim);
    outer = blocks.outer;
    row = block.bytes_of(blocks.inner);
  }
  int64_t block_bytes() const { return outer * row; }
  /// Calls `copy` with a member, and the offsets of each of its runs in the tensor and in its
  /// block.
  template <class Copy>
  void each(Copy copy) const {
    for (int64_t o = 0; o < outer; ++o) {
      for (int64_t member = 0; member < members; ++member) {
        copy(member, (o * members + member) * row, o * row);
      }
    }
  }
};

/// Operands of one type, with their offsets in a flat buffer.
struct Flat {
  std::vector<size_t> operands;
  std::vector<int64_t> begins;
  int64_t bytes = 0;
  Scratch in, out;
  std::unique_ptr<Request> begun;
};

/// Groups the operands by type; each group is reduced as one flat buffer.
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

/// Calls `copy` with every operand's index and its address in the flat buffer.
template <class Copy>
void each_operand(const Flat& flat, const Scratch& memory, Copy copy) {
  for (size_t i = 0; i < flat.operands.size(); ++i) {
    copy(flat.operands[i], memory.data + flat.begins[i]);
  }
}

std::byte* bytes_of(void* operand) { return static_cast<std::byte*>(operand); }

/// Returns the bytes of all buffers, each `times` in one part of a ScratchSpace.
int64_t aligned_bytes(const std::map<graph::DType, Flat>& flats, int64_t times) {
  int64_t bytes = 0;
  for (const auto& [dtype, flat] : flats) {
    bytes += aligned(times * flat.bytes);
  }
  return bytes;
}

void all_reduce(const Call& call, CollectiveGroup& group, ScratchSpace& space, const Wait& wait) {
  const std::vector<TensorType>& types = call.kind->in;
  std::map<graph::DType, Flat> flats = by_type(types);
  space.begin(aligned_bytes(flats, 1));
  for (auto& [dtype, flat] : flats) {
    flat.in = space.take(flat.bytes);
    each_operand(flat, flat.in,
                 [&](size_t i, std::byte* at) { copy_bytes(at, call.in[i], types[i].bytes()); });
    flat.begun = group.all_reduce(flat.in, reduce_type_of(dtype), takes_greatest(call));
  }
  for (auto& [dtype, flat] : flats) {
    wait(*flat.begun);
    each_operand(flat, flat.in,
                 [&](size_t i, std::byte* at) { copy_bytes(call.out[i], at, types[i].bytes()); });
  }
}

void reduce_scatter(const Call& call, const Op& op, CollectiveGroup& group, ScratchSpace& space,
                    const Wait& wait) {
  const std::vector<TensorType>& blocks = call.kind->out;
  const int dim = movement(op, call.kind->attrs).part_dim;
  const int64_t n = std::ssize(call.members);
  std::map<graph::DType, Flat> flats = by_type(blocks);
  space.begin(aligned_bytes(flats, n) + aligned_bytes(flats, 1));
  for (auto& [dtype, flat] : flats) {
    flat.in = space.take(n * flat.bytes);
    flat.out = space.take(flat.bytes);
    each_operand(flat, flat.in, [&, bytes = flat.bytes](size_t i, std::byte* first) {
      const Cut cut(blocks[i], dim, n);
      cut.each([&](int64_t member, int64_t in_tensor, int64_t in_block) {
        copy_bytes(first + member * bytes + in_block, bytes_of(call.in[i]) + in_tensor, cut.row);
      });
    });
    flat.begun =
        group.reduce_scatter(flat.in, flat.out, reduce_type_of(dtype), takes_greatest(call));
  }
  for (auto& [dtype, flat] : flats) {
    wait(*flat.begun);
    each_operand(flat, flat.out,
                 [&](size_t i, std::byte* at) { copy_bytes(call.out[i], at, blocks[i].bytes()); });
  }
}

void all_gather(const Call& call, const Op& op, CollectiveGroup& group, ScratchSpace& space,
                const Wait& wait) {
  const std::vector<TensorType>& blocks = call.kind->in;
  const int dim = movement(op, call.kind->attrs).slot_dim;
  const int64_t n = std::ssize(call.members);
  const int64_t bytes = total_bytes(blocks);
  if (bytes == 0) return;
  space.begin(aligned(bytes) + aligned(n * bytes));
  const Scratch in = space.take(bytes), out = space.take(n * bytes);
  int64_t begin = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    copy_bytes(in.data + begin, call.in[i], blocks[i].bytes());
    begin += blocks[i].bytes();
  }
  wait(*group.all_gather(in, out));
  begin = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const Cut cut(blocks[i], dim, n);
    cut.each([&](int64_t member, int64_t in_tensor, int64_t in_block) {
      copy_bytes(bytes_of(call.out[i]) + in_tensor, out.data + member * bytes + begin + in_block,
                 cut.row);
    });
    begin += cut.block_bytes();
  }
}

/// Returns whether the slices are contiguous in one operand.
bool in_one_piece(const std::vector<Slice>& slices) {
  for (size_t i = 1; i < slices.size(); ++i) {
    const Slice& before = slices[i - 1];
    if (slices[i].out != before.out || slices[i].operand != before.operand ||
        slices[i].begin != before.begin + before.bytes) {
      return false;
    }
  }
  return !slices.empty();
}

/// Makes slices received from another member available to the op, in place where possible.
void deliver(Members& members, size_t other, const std::vector<Slice>& slices, std::byte* from) {
  if (in_one_piece(slices)) {
    members.set(other, slices[0], from);
    return;
  }
  members.allocate(other, slices);
  for (const Slice& slice : slices) {
    copy_bytes(address_of(members.of(other), slice), from, slice.bytes);
    from += slice.bytes;
  }
}

/// Exchanges the slices that members read of each other, then runs the member's part by the op's
/// record.
void all_to_all(const Call& call, const Op& op, int32_t rank, CollectiveGroup& group,
                ScratchSpace& space, const Wait& wait) {
  Members members(call, op, rank);
  const size_t n = members.size(), me = members.me();
  const CollectiveArgs all = members.args();
  std::vector<std::vector<Slice>> gives(n), takes(n);
  std::vector<int64_t> bytes_to(n), bytes_from(n);
  int64_t sent = 0, received = 0;
  for (size_t other = 0; other < n; ++other) {
    if (other == me) continue;
    gives[other] = op.reads(all, me, other, 0);
    takes[other] = op.reads(all, other, me, 0);
    sent += bytes_to[other] = total(gives[other]);
    received += bytes_from[other] = total(takes[other]);
  }
  space.begin(aligned(sent) + aligned(received));
  const Scratch in = space.take(sent), out = space.take(received);
  std::byte* into = in.data;
  for (const std::vector<Slice>& slices : gives) {
    for (const Slice& slice : slices) {
      copy_bytes(into, address_of(members.of(me), slice), slice.bytes);
      into += slice.bytes;
    }
  }
  wait(*group.all_to_all(in, bytes_to, out, bytes_from));
  std::byte* from = out.data;
  for (size_t other = 0; other < n; ++other) {
    deliver(members, other, takes[other], from);
    from += bytes_from[other];
  }
  op.run(members.args(), me, 0);
}

}  // namespace

void ScratchSpace::begin(int64_t bytes) {
  used_ = 0;
  if (bytes <= bytes_) return;
  memory_ = std::make_shared<Message>(Message::unpooled(bytes));
  bytes_ = bytes;
}

Scratch ScratchSpace::take(int64_t bytes) {
  const int64_t at = used_;
  used_ += aligned(bytes);
  HOCKET_CHECK(used_ <= bytes_, "{} bytes of {} for a collective", used_, bytes_.load());
  return {memory_, memory_ ? memory_->data.get() + at : nullptr, bytes};
}

void run_by_transport(const Call& call, const Op& op, int32_t rank, CollectiveGroup& group,
                      ScratchSpace& space, const Wait& wait) {
  switch (by_transport(op, call.kind->attrs, call.kind->in)) {
    case ByTransport::all_reduce:
      return all_reduce(call, group, space, wait);
    case ByTransport::reduce_scatter:
      return reduce_scatter(call, op, group, space, wait);
    case ByTransport::all_gather:
      return all_gather(call, op, group, space, wait);
    case ByTransport::all_to_all:
      return all_to_all(call, op, rank, group, space, wait);
    case ByTransport::none:
      break;
  }
  HOCKET_CHECK(false, "the transport has no {}", op.name);
}

}  // namespace hocket::comm
