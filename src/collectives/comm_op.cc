// SPDX-License-Identifier: Apache-2.0
// Registry of communication ops (an explicit list, comm_ops.inc), and everything derived from their
// movements.
#include "collectives/comm_op.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <numeric>

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/text.h"
#include "collectives/parts.h"

namespace hocket::comm {

#define HOCKET_COMM_OP(name) Op describe_##name();
#include "collectives/comm_ops.inc"
#undef HOCKET_COMM_OP

namespace {

struct Registry {
  std::vector<Op> ops;
  std::vector<const Op*> pointers;
  Registry() {
    auto add = [&](const char* name, Op op) {
      op.name = name;
      op.id = static_cast<Id>(ops.size() + 1);
      ops.push_back(op);
    };
#define HOCKET_COMM_OP(name) add(#name, describe_##name());
#include "collectives/comm_ops.inc"
#undef HOCKET_COMM_OP
    for (const Op& op : ops) {
      pointers.push_back(&op);
    }
  }
};

const Registry& registry() {
  static const Registry built;
  return built;
}

bool takes(const Op& op, const TensorType& type) {
  // Elements with block scales or of less than a byte cannot be summed directly.
  if (op.move.placed == Move::Placed::sum && type.granule() > 1) return false;
  switch (op.takes) {
    case Takes::any:
      return true;
    case Takes::dense:
      return !type.routed();
    case Takes::routed:
      return type.routed();
    case Takes::counts:
      return type.dtype == graph::DType::i64 && type.dims.size() == 1 && !type.routed();
  }
  return false;
}

const char* taken_text(Takes takes) {
  switch (takes) {
    case Takes::any:
      break;
    case Takes::dense:
      return "a tensor that is not routed";
    case Takes::routed:
      return "a routed tensor";
    case Takes::counts:
      return "row counts, i64[experts]";
  }
  return "any tensor";
}

/// Returns the number of dims that may be split; of a routed tensor only experts and tokens, since
/// the rest are whole rows.
size_t num_dims(const TensorType& type) { return type.routed() ? 2 : type.dims.size(); }

/// Returns the number of experts of all members together.
graph::Dim experts_of(const Op& op, const Attrs& attrs, const TensorType& type, int64_t members) {
  graph::Dim experts = type.dims[0];
  if (before(op, attrs) == Placement::split(0)) {
    experts *= members;
  }
  return experts;
}

/// Returns the length of every member along the cut dim, where the attribute states it.
std::vector<int64_t> lengths_of_members(const Op& op, const Attrs& attrs, const char* attribute,
                                        int64_t members) {
  std::vector<int64_t> lengths = lengths_of(attrs, attribute);
  if (!lengths.empty() && std::ssize(lengths) != members) {
    fail(op.name, "{} is '{}'; expected a number for each of {} ranks", attribute,
         attrs.s(attribute), members);
  }
  return lengths;
}

/// Returns the total length of a dim that is split over the members: equal shares, or the first
/// members one more (`size`; 0: equal), or as attribute `slots` states.
graph::Dim total_length(const Op& op, const Attrs& attrs, const TensorType& type, int dim,
                        int64_t members, int64_t me, int64_t size) {
  const std::vector<int64_t> slots = lengths_of_members(op, attrs, kSlots, members);
  if (!slots.empty()) {
    const int64_t mine = slots[static_cast<size_t>(me)];
    if (size != 0 || type.dims[static_cast<size_t>(dim)] != mine) {
      fail(op.name, "got {} on rank {}; slots are {} along dim {}; expected {} there, and no size",
           to_string(type), me, fmt::join(slots, ", "), dim, mine);
    }
    return std::accumulate(slots.begin(), slots.end(), int64_t{0});
  }
  graph::Dim mine = type.dims[static_cast<size_t>(dim)];
  if (size == 0) return mine *= members;
  if (op.takes != Takes::dense || size < members || size % members == 0) {
    fail(op.name, "got size {} of dim {} over {} ranks; expected a size that they do not divide",
         size, dim, members);
  }
  const int64_t share = graph::share(size, members, me).length;
  if (mine != share) {
    fail(op.name, "got {} for a share of {} along dim {}; expected {}", to_string(type), size, dim,
         share);
  }
  return size;
}

}  // namespace

const Op& op(Id id) {
  HOCKET_CHECK(id != Id::none, "a local op is no communication");
  return registry().ops[static_cast<size_t>(id) - 1];
}

Id find(std::string_view name) {
  for (const Op& op : registry().ops) {
    if (name == op.name) return op.id;
  }
  return Id::none;
}

const std::vector<const Op*>& all() { return registry().pointers; }

const Op& summing() {
  static const Op& found = *std::find_if(all().begin(), all().end(), [](const Op* op) {
    return op->list && op->move.placed == Move::Placed::sum && op->move.part == Move::Part::whole;
  })[0];
  return found;
}

const Op& message(Role role) {
  for (const Op* op : all()) {
    if (op->role == role) return *op;
  }
  HOCKET_CHECK(false, "no communication op has role {}", static_cast<int>(role));
}

int dim_of(const Attrs& attrs, const char* attribute) {
  if (!attribute) return 0;
  constexpr int64_t kMaxDim = std::numeric_limits<int8_t>::max();  // storage of Placement::split
  const int64_t dim = attrs.i(attribute);
  if (dim < 0 || dim > kMaxDim) {
    fail("comm", "{} is {}; expected a dim, 0 or more and less than those of the operand",
         attribute, dim);
  }
  return static_cast<int>(dim);
}

Placement before(const Op& op, const Attrs& attrs) {
  switch (op.move.placed) {
    case Move::Placed::slot:
      return Placement::split(dim_of(attrs, op.move.slot_dim));
    case Move::Placed::sum:
      return Placement::partial(monoid_of(attrs));
    case Move::Placed::whole:
      break;
  }
  return Placement::replicate();
}

Placement after(const Op& op, const Attrs& attrs) {
  return op.move.part == Move::Part::block ? Placement::split(dim_of(attrs, op.move.part_dim))
                                           : Placement::replicate();
}

graph::Monoid monoid_of(const Attrs& attrs) {
  if (!attrs.has("monoid")) return graph::Monoid::sum;
  const std::string& name = attrs.s("monoid");
  if (name != "max") fail("comm", "monoid is '{}'; expected max, or none for sums", name);
  return graph::Monoid::max;
}

int64_t outer_of(const Attrs& attrs) {
  /// Most parts of dim 0; a guard against damaged programs.
  constexpr int64_t kMaxOuter = 1 << 16;
  const int64_t outer = attrs.i_or("outer", 1);
  if (outer < 1 || outer > kMaxOuter) {
    fail("comm", "outer is {}; expected 1 to {}", outer, kMaxOuter);
  }
  return outer;
}

std::vector<int64_t> lengths_of(const Attrs& attrs, const char* attribute) {
  /// Largest length; a guard against overflow in damaged programs.
  constexpr int64_t kMaxLength = int64_t{1} << 40;
  std::vector<int64_t> lengths;
  if (!attrs.has(attribute)) return lengths;
  const std::string& text = attrs.s(attribute);
  for (const std::string& number : split(text, ',')) {
    int64_t value = 0;
    if (!parse_int(number, &value) || value < 1 || value > kMaxLength) {
      fail("comm", "{} is '{}'; expected numbers from 1 to {}, such as 3,2,2", attribute, text,
           kMaxLength);
    }
    lengths.push_back(value);
  }
  return lengths;
}

void set_lengths(const std::vector<int64_t>& lengths, const char* attribute, Attrs* attrs) {
  attrs->set(attribute, fmt::format("{}", fmt::join(lengths, ",")));
}

std::vector<int64_t> sizes_of(const Attrs& attrs, size_t operands) {
  std::vector<int64_t> sizes = lengths_of(attrs, kSizes);
  if (!attrs.has(kSizes) && attrs.has("size")) {
    sizes.assign(operands, attrs.i("size"));
  }
  if (sizes.empty()) return sizes;
  if (sizes.size() != operands || (attrs.has(kSizes) && attrs.has("size"))) {
    fail("comm", "{} is '{}'; expected a number for each of {} operands, and no size", kSizes,
         attrs.s(kSizes), operands);
  }
  return sizes;
}

void set_sizes(const std::vector<int64_t>& sizes, Attrs* attrs) {
  attrs->erase("size");
  attrs->erase(kSizes);
  if (sizes.empty()) return;
  if (std::count(sizes.begin(), sizes.end(), sizes[0]) == std::ssize(sizes)) {
    attrs->set("size", sizes[0]);
  } else {
    set_lengths(sizes, kSizes, attrs);
  }
}

bool has_sizes(const Attrs& attrs) { return attrs.has("size") || attrs.has(kSizes); }

bool has_lengths(const Attrs& attrs) { return attrs.has(kSlots) || attrs.has(kBlocks); }

Movement movement(const Op& op, const Attrs& attrs) {
  Movement movement;
  movement.move = op.move;
  movement.part_dim = dim_of(attrs, op.move.part_dim);
  movement.slot_dim = dim_of(attrs, op.move.slot_dim);
  if (op.move.part == Move::Part::block) {
    movement.blocks = lengths_of(attrs, kBlocks);
  }
  if (op.move.placed == Move::Placed::sum) {
    movement.monoid = monoid_of(attrs);
  }
  if (op.move.in_parts && op.move.part == Move::Part::block && movement.part_dim == 0) {
    movement.part_outer = outer_of(attrs);
  } else if (op.move.in_parts && op.move.placed == Move::Placed::slot && movement.slot_dim == 0) {
    movement.slot_outer = outer_of(attrs);
  }
  return movement;
}

Arity arity(const Op& op, size_t inputs) {
  if (op.role == Role::send) return {1, 0};
  if (op.role == Role::receive) return {0, 1};
  if (op.role == Role::between) return inputs == 0 ? Arity{0, 1} : Arity{1, 0};
  if (op.list) return {std::max<size_t>(inputs, 1), std::max<size_t>(inputs, 1)};
  return {op.needs_sizes ? size_t{2} : size_t{1}, op.makes_sizes ? size_t{2} : size_t{1}};
}

std::vector<TensorType> infer(const Op& op, const Attrs& attrs, std::span<const TensorType> in,
                              int64_t members, int64_t me) {
  // Checks the number of inputs, then infers the type of every moved value. A dim along which parts
  // are concatenated grows by the number of members; a dim cut into a block per member shrinks by
  // it.
  HOCKET_CHECK(op.role != Role::receive && op.role != Role::between,
               "the received type is the sent one");
  const size_t want = arity(op, in.size()).in;
  if (in.size() != want) fail(op.name, "got {} inputs; expected {}", in.size(), want);
  const bool exchange = op.needs_sizes || op.makes_sizes;
  std::vector<TensorType> out;
  if (op.role == Role::send) return out;
  const Movement movement = comm::movement(op, attrs);
  const std::vector<int64_t> wholes = sizes_of(attrs, op.list ? in.size() : 1);
  for (const TensorType& type : in.first(op.list ? in.size() : 1)) {
    if (!takes(op, type)) {
      fail(op.name, "does not take {}; expected {}{}", to_string(type), taken_text(op.takes),
           op.move.placed == Move::Placed::sum ? ", elements without scales and of whole bytes"
                                               : "");
    }
    TensorType moved = type;
    const Placement from = before(op, attrs);
    const Placement to = after(op, attrs);
    for (const Placement& placement : {from, to}) {
      if (placement.is_split() && static_cast<size_t>(placement.dim()) >= num_dims(type)) {
        fail(op.name, "got dim {} of {}; expected less than {}", placement.dim(), to_string(type),
             num_dims(type));
      }
    }
    if (from.is_split() && from == to) {
      fail(op.name, "goes from dim {} to itself; expected two dims", from.dim());
    }
    if (op.needs_sizes && from == Placement::split(0)) {
      const graph::Dim experts = in[1].dims.empty() ? graph::Dim(0) : in[1].dims.back();
      const int64_t outer = movement.slot_outer;
      const int64_t share =
          experts % outer == 0 ? outer * graph::share(experts / outer, members, me).length : 0;
      if (moved.dims[0] != share) {
        fail(op.name, "got {} for a share of {} experts; expected {}", to_string(type), experts,
             share);
      }
      moved.dims[0] = experts;
    } else if (from.is_split()) {
      const int64_t whole = wholes.empty() ? 0 : wholes[out.size()];
      moved.dims[from.dim()] = total_length(op, attrs, type, from.dim(), members, me, whole);
    }
    if (exchange && to == Placement::split(0)) {
      const int64_t outer = movement.part_outer;
      if (moved.dims[0] % outer != 0) {
        fail(op.name, "{} experts are not {} parts", moved.dims[0], outer);
      }
      moved.dims[0] = outer * graph::share(moved.dims[0] / outer, members, me).length;
      if (moved.dims[0] == 0) fail(op.name, "fewer experts than the {} ranks", members);
    } else if (to.is_split()) {
      graph::Dim& size = moved.dims[to.dim()];
      const std::vector<int64_t> blocks = lengths_of_members(op, attrs, kBlocks, members);
      if (!blocks.empty()) {
        if (size != std::accumulate(blocks.begin(), blocks.end(), int64_t{0})) {
          fail(op.name, "got {}; expected {} along dim {}", to_string(type),
               fmt::join(blocks, " + "), to.dim());
        }
        size = blocks[static_cast<size_t>(me)];
      } else if (size.divides_into(members)) {
        size /= members;
      } else if (!size.symbolic() && size >= members && op.takes == Takes::dense) {
        size = graph::share(size, members, me).length;
      } else {
        fail(op.name, "dim {} of {} can't be split over {} ranks", to.dim(), to_string(type),
             members);
      }
    }
    if (const std::string why = why_invalid(moved); !why.empty()) {
      fail(op.name, "the result {} of {} is invalid: {}", to_string(moved), to_string(type), why);
    }
    out.push_back(std::move(moved));
  }
  const int64_t experts = op.needs_sizes && before(op, attrs) == Placement::split(0)
                              ? in[1].dims.back()
                              : in[0].dims[0];
  const TensorType sizes{graph::DType::i64, {members, experts}, 0};
  if (op.needs_sizes && in[1] != sizes) {
    fail(op.name, "got sizes {}; expected {}", to_string(in[1]), to_string(sizes));
  }
  if (op.makes_sizes) {
    out.insert(out.begin(), sizes);
  }
  return out;
}

bool types_match(const Op& op, const Attrs& attrs, const Types& one, const Types& other) {
  if (op.role == Role::between) {
    const TensorType& mine = one.in.empty() ? one.out[0] : one.in[0];
    const TensorType& theirs = other.in.empty() ? other.out[0] : other.in[0];
    return mine.dtype == theirs.dtype && mine.dims.size() == theirs.dims.size();
  }
  const bool exchange = op.needs_sizes || op.makes_sizes;
  const auto alike = [&](std::span<const TensorType> mine, std::span<const TensorType> theirs,
                         const char* cut, const char* lengths) {
    const bool given = attrs.has(lengths);
    if (mine.size() != theirs.size()) return false;
    for (size_t i = 0; i < mine.size(); ++i) {
      if (mine[i] == theirs[i]) continue;
      // Dims that may differ: experts' rows, their counts, tokens, and dims that the members do not
      // divide. infer() checks the length that each member must have.
      const bool rows = mine[i].routed() || mine[i].dims.size() == 1;
      const bool shares = cut && op.takes == Takes::dense;
      if (mine[i].dims.size() != theirs[i].dims.size() || !(exchange ? rows : shares)) return false;
      const int64_t along = exchange ? 0 : attrs.i_or(cut, -1);
      if (along < 0 || along >= std::ssize(mine[i].dims)) return false;
      const auto dim = static_cast<size_t>(along);
      TensorType type = mine[i];
      const int64_t apart = std::abs(int64_t{type.dims[dim]} - theirs[i].dims[dim]);
      if (!exchange && !given && apart != 1) return false;
      type.dims[dim] = theirs[i].dims[dim];
      if (given && type.routed()) {
        type.dims[1] = theirs[i].dims[1];
      }
      if (type != theirs[i]) return false;
    }
    return true;
  };
  return alike(one.in, other.in, op.move.slot_dim, kSlots) &&
         alike(one.out, other.out, op.move.part_dim, kBlocks);
}

std::optional<Resharding> resharding(const TensorType& local, Placement from, Placement to,
                                     int64_t members, const Sharing& sharing) {
  for (const Op* op : all()) {
    if (op->role != Role::collective || !takes(*op, local)) continue;
    const bool slot = op->move.placed == Move::Placed::slot;
    const bool block = op->move.part == Move::Part::block;
    Resharding resharding;
    resharding.op = op;
    if (slot && from.is_split() && op->move.slot_dim) {
      resharding.attrs.set(op->move.slot_dim, int64_t{from.dim()});
    }
    if (block && to.is_split() && op->move.part_dim) {
      resharding.attrs.set(op->move.part_dim, int64_t{to.dim()});
    }
    if (from == Placement::partial(graph::Monoid::max)) {
      resharding.attrs.set("monoid", std::string("max"));
    }
    if (slot && from.is_split() && sharing.size > 0) {
      resharding.attrs.set("size", sharing.size);
    }
    if (slot && !sharing.slots.empty()) {
      set_lengths(sharing.slots, kSlots, &resharding.attrs);
    }
    if (block && !sharing.blocks.empty()) {
      set_lengths(sharing.blocks, kBlocks, &resharding.attrs);
    }
    // A placement with an attribute that could not be set belongs to another kind of movement.
    if ((slot && !from.is_split()) || (block && !to.is_split())) continue;
    if (before(*op, resharding.attrs) != from || after(*op, resharding.attrs) != to) continue;
    resharding.in = {local};
    if (op->needs_sizes) {
      resharding.in.push_back(
          {graph::DType::i64,
           {members, sharing.experts > 0 ? sharing.experts
                                         : experts_of(*op, resharding.attrs, local, members)},
           0});
    }
    try {
      resharding.out = infer(*op, resharding.attrs, resharding.in, members, sharing.me);
    } catch (const Error&) {
      continue;  // its sizes do not divide, or the dim cannot be split
    }
    resharding.payload = op->payload(resharding.attrs, resharding.in, resharding.out);
    resharding.bytes = std::numeric_limits<double>::infinity();
    resharding.rounds = std::numeric_limits<double>::infinity();
    for (const Algorithm& algorithm :
         op->algorithms(static_cast<double>(members), static_cast<double>(resharding.payload))) {
      resharding.bytes = std::min(resharding.bytes, algorithm.bytes);
      resharding.rounds = std::min(resharding.rounds, algorithm.rounds);
    }
    return resharding;
  }
  return std::nullopt;
}

}  // namespace hocket::comm
