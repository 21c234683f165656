// SPDX-License-Identifier: Apache-2.0
// What a communication op is, in one record per op: what it takes, how it moves a value between
// ranks, what that costs, and how it is done where the memory of all members is at hand. Lowering
// chooses ops by their movement, the check derives from it what becomes of a value, the cost model,
// the transports and the generic tests read the rest: nobody else knows an op by name.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "graph/layout.h"
#include "graph/tensor_type.h"

namespace hocket::comm {

using graph::Attrs;
using graph::Placement;
using graph::TensorType;

/// Every communication op; `none` is an op that involves no other rank.
enum class Id : uint8_t {
  none,
#define HOCKET_COMM_OP(name) name,
#include "collectives/comm_ops.inc"
#undef HOCKET_COMM_OP
};

/// A collective is run by all members of a group, a message by its two ends. Between two roles, all
/// ranks of both take part: those of one give, those of the other take.
enum class Role : uint8_t { collective, send, receive, between };

/// What the moved operands must be. Row counts are i64[experts].
enum class Takes : uint8_t { any, dense, routed, counts };

/// How a value moves: an output is, at every rank, a part of what each source holds, placed.
/// Sources are the members of the group, in rank order, or the sender of a message. On every axis
/// of the group this takes a value from the placement `before` to the placement `after`.
struct Move {
  enum class Part : uint8_t {
    whole,  ///< all of it
    block,  ///< the block along `part_dim` that has the receiver's number
  } part = Part::whole;
  enum class Placed : uint8_t {
    whole,  ///< the value of the one source
    slot,   ///< side by side along `slot_dim`, by the number of the source
    sum,    ///< added up in the order of the sources
  } placed = Placed::whole;
  /// Attributes that hold the dims; null: dim 0.
  const char* part_dim = nullptr;
  const char* slot_dim = nullptr;
  /// True if attribute `outer` may say that dim 0 is cut in so many parts first, of each of which
  /// every member has its block: then members of one level of a machine exchange what belongs to
  /// members of the next one with the same number.
  bool in_parts = false;
};

/// One way to do a collective: `rounds` messages after each other, and `bytes` through a rank's
/// link.
struct Algorithm {
  const char* name = "";
  double rounds = 0;
  double bytes = 0;
  /// A part for every other member at the same time, instead of neighbour to neighbour in a ring.
  bool direct = false;
};

/// What one member brings to a collective.
struct Operands {
  std::span<void*const> in, out;
};

/// Elements that a member takes from another one, neighbours in the memory of both.
struct Copy {
  int32_t source = 0;  ///< number of the member
  int64_t from = 0, to = 0, count = 0;
  bool operator==(const Copy&) const = default;
};

/// A collective with the memory of all members at hand.
struct Together {
  const Attrs* attrs = nullptr;
  std::span<const TensorType> in,
      out;                            ///< types of the member that asks; those of others: see meet
  std::span<const Operands> members;  ///< in the order of the group
  std::span<const Copy> copies = {};  ///< Role::between: what the member that asks takes
  std::span<const Copy> given = {};   ///< and what is taken of it; Copy::source: by which member
  int64_t part = 0, parts = 1;        ///< Op::divides: of what each phase does, this part
};

/// Bytes of one operand of a member: an input, or an output that a phase before has filled.
struct Slice {
  bool out = false;
  size_t operand = 0;
  int64_t begin = 0, bytes = 0;
  bool operator==(const Slice&) const = default;
};

/// One case for the generic tests: attributes, and the local types of a member's inputs.
struct Sample {
  Attrs attrs;
  std::vector<TensorType> in;
};

struct Op {
  Id id = Id::none;       ///< set by the registry
  const char* name = "";  ///< in program texts; set by the registry
  const char* doc = "";   ///< what it does, in a line or two
  Role role = Role::collective;
  Takes takes = Takes::any;
  Move move;
  /// Any number of inputs, each moved to the output of the same number. Otherwise the first input
  /// is moved to the last output.
  bool list = false;
  /// The output of an input may lie in the input's own buffer.
  bool in_place = false;
  /// A second input: the rows of routed tensors per rank and expert, i64[members, experts], which a
  /// `makes_sizes` op of the same routing has gathered.
  bool needs_sizes = false;
  /// A first output: the input of every member, i64[members, experts].
  bool makes_sizes = false;
  /// Bytes that a rank contributes or receives, whichever is more: the size that algorithms divide.
  int64_t (*payload)(const Attrs&, std::span<const TensorType> in,
                     std::span<const TensorType> out) = nullptr;
  /// Ways to do it among `members` ranks, at least one; null where the sender pays (receives).
  std::vector<Algorithm> (*algorithms)(double members, double payload) = nullptr;
  /// The part of member `me` in one phase; every member ends a phase before any begins the next.
  /// Throws Error when rows do not fit their buffer. Null: messages.
  void (*run)(const Together&, size_t me, int phase) = nullptr;
  int phases = 1;
  /// A phase may be done in any number of parts, in order: what comes late then holds up little.
  bool divides = false;
  /// What member `to` reads of member `from` in a phase, beyond sizes: what a transport brings
  /// where the memory of others is not at hand. One of the two is the member that asks, whose types
  /// and sizes are there. Null: messages.
  std::vector<Slice> (*reads)(const Together&, size_t from, size_t to, int phase) = nullptr;
  /// Cases among `members` ranks. Null: messages.
  std::vector<Sample> (*samples)(int64_t members) = nullptr;
};

/// The record of an op other than none.
const Op& op(Id id);
/// By its name in program texts; none if there is no such communication op.
Id find(std::string_view name);
const std::vector<const Op*>& all();
/// The op that sums lists of partial values over a group, and the two ends of a message.
const Op& summing();
const Op& message(Role role);

/// Placement on an axis of the group that a value must have, and the one it then gets. Messages
/// leave any placement as it is. Throws Error when an attribute is missing.
Placement before(const Op& op, const Attrs& attrs);
Placement after(const Op& op, const Attrs& attrs);

/// A movement with its dims: those that Move::part_dim and Move::slot_dim name. Throws Error when
/// an attribute is missing.
struct Movement {
  Move move;
  int part_dim = 0, slot_dim = 0;
  /// Placed::sum: how the parts become one; attribute `monoid` ("max"), by default they are added.
  graph::Monoid monoid = graph::Monoid::sum;
  /// Move::in_parts: attribute `outer`; 1 for a dim other than 0.
  int64_t part_outer = 1, slot_outer = 1;
  /// Part::block: attribute kBlocks.
  std::vector<int64_t> blocks = {};
};
Movement movement(const Op& op, const Attrs& attrs);

/// The attribute of this name, which says a dim; 0 for null. Throws Error when it is missing, or no
/// dim of any tensor: what moves a value reads dims by this alone, as who says how it is moved.
int dim_of(const Attrs& attrs, const char* attribute);

/// Attribute `outer` of an op with Move::in_parts, 1 without one. Throws Error for less than 1, and
/// for more than 65,536.
int64_t outer_of(const Attrs& attrs);

/// How much the members have each of a dim that they cut otherwise than as evenly as it divides, in
/// the order of the group ("3,2,2"): attribute kSlots of the dim along which their parts are placed
/// side by side, kBlocks of the one of which each takes a block. Of rows of experts, their tokens.
inline constexpr const char* kSlots = "slots";
inline constexpr const char* kBlocks = "blocks";
/// Such an attribute; empty without it. Throws Error for what is no such list.
std::vector<int64_t> lengths_of(const Attrs& attrs, const char* attribute);
void set_lengths(const std::vector<int64_t>& lengths, const char* attribute, Attrs* attrs);
/// Whether one of the two is there.
bool has_lengths(const Attrs& attrs);

/// Attribute `monoid`: how a reduction puts parts together. Throws Error for an unknown one.
graph::Monoid monoid_of(const Attrs& attrs);

/// Numbers of inputs and outputs, of a kind that has this many inputs.
struct Arity {
  size_t in = 0, out = 0;
  bool operator==(const Arity&) const = default;
};
Arity arity(const Op& op, size_t inputs);

/// Local types of the outputs for those of the inputs, of member `me` in a group of `members`
/// ranks. Members differ only where they do not divide a dim that is cut (graph::share): experts of
/// an exchange, or, with the attribute `size`, what they put together; or as kSlots and kBlocks
/// say. Throws Error when the op does not take such inputs. Not for receives and transfers, whose
/// type the other end decides.
std::vector<TensorType> infer(const Op& op, const Attrs& attrs, std::span<const TensorType> in,
                              int64_t members, int64_t me = 0);

/// True if members with these types may meet in the op: all have the same, but for the numbers of
/// experts of an exchange, of a dim that the members cut, and for what each gives or takes in a
/// transfer.
struct Types {
  std::span<const TensorType> in, out;
};
bool meet(const Op& op, const Attrs& attrs, const Types& one, const Types& other);

/// Whose local type it is, where members have different ones (infer), and how many experts all have
/// together, or of a dim that is put together; 0: as many on each. Or how much each has: see
/// kSlots.
struct Sharing {
  int64_t me = 0;
  graph::Dim experts = 0;
  int64_t size = 0;
  std::vector<int64_t> slots = {}, blocks = {};
};
/// A collective that takes a value of this local type from one placement to another on an axis of
/// `members` ranks.
struct Resharding {
  const Op* op = nullptr;
  Attrs attrs;
  std::vector<TensorType> in, out;  ///< local types, sizes included
  int64_t payload = 0;
  double bytes = 0;   ///< through a rank's link, by the leanest algorithm
  double rounds = 0;  ///< of the algorithm with the fewest
};
std::optional<Resharding> resharding(const TensorType& local, Placement from, Placement to,
                                     int64_t members, const Sharing& sharing = {});

}  // namespace hocket::comm
