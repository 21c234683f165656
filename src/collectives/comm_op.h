// SPDX-License-Identifier: Apache-2.0
// Record of a communication op: its operands, the movement of values between ranks, its cost, and
// an implementation on the memory of all members. Lowering chooses ops by their movement, the
// checker derives the result from it, and the cost model, transports and generic tests read the
// rest. No other code knows an op by name.
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

/// Identifiers of the communication ops; `none` is an op that involves no other rank.
enum class Id : uint8_t {
  none,
#define HOCKET_COMM_OP(name) name,
#include "collectives/comm_ops.inc"
#undef HOCKET_COMM_OP
};

/// Participation of ranks. A collective is run by all members of a group, a message by its two
/// ends. `between` involves all ranks of two roles: one role sends, the other receives.
enum class Role : uint8_t { collective, send, receive, between };

/// Kinds of tensors that the moved operands must be. Row counts are i64[experts].
enum class Takes : uint8_t { any, dense, routed, counts };

/// Movement of a value: every rank's output combines a part of each source's value. Sources are the
/// members of the group in rank order, or the sender of a message. On every axis of the group, the
/// value goes from placement `before` to placement `after`.
struct Move {
  enum class Part : uint8_t {
    whole,  ///< the whole value
    block,  ///< the block along `part_dim` with the receiver's index
  } part = Part::whole;
  enum class Placed : uint8_t {
    whole,  ///< the value of the only source
    slot,   ///< concatenated along `slot_dim` by the index of the source
    sum,    ///< summed in the order of the sources
  } placed = Placed::whole;
  /// Attributes that hold the dims; null: dim 0.
  const char* part_dim = nullptr;
  const char* slot_dim = nullptr;
  /// Whether attribute `outer` may split dim 0 into that many runs, with a block of each run for
  /// every member. It serves two-level exchanges: members of one level exchange the data of
  /// next-level members with the same index.
  bool in_parts = false;
};

/// Algorithm for a collective: `rounds` messages in sequence, and `bytes` through a rank's link.
struct Algorithm {
  const char* name = "";
  double rounds = 0;
  double bytes = 0;
  /// Sends to every other member at the same time, instead of neighbour to neighbour in a ring.
  bool direct = false;
};

/// Operands of one member of a collective.
struct Operands {
  std::span<void*const> in, out;
};

/// Elements that a member copies from another one, contiguous in the memory of both.
struct Copy {
  int32_t source = 0;  ///< index of the source member
  int64_t from = 0, to = 0, count = 0;
  bool operator==(const Copy&) const = default;
};

/// A collective with the operands of all members in this process's memory.
struct CollectiveArgs {
  const Attrs* attrs = nullptr;
  std::span<const TensorType> in,
      out;                            ///< types of the calling member; for others see types_match()
  std::span<const Operands> members;  ///< in the order of the group
  std::span<const Copy> copies = {};  ///< Role::between: elements that the calling member receives
  std::span<const Copy> given = {};   ///< and elements that it sends; Copy::source is the receiver
  int64_t part = 0, parts = 1;        ///< Op::divides: the part of each phase to execute
};

/// Bytes of one operand of a member: an input, or an output that an earlier phase has filled.
struct Slice {
  bool out = false;
  size_t operand = 0;
  int64_t begin = 0, bytes = 0;
  bool operator==(const Slice&) const = default;
};

/// Test case for the generic tests: attributes, and a member's local input types.
struct Sample {
  Attrs attrs;
  std::vector<TensorType> in;
};

/// Record of one communication op.
struct Op {
  Id id = Id::none;       ///< set by the registry
  const char* name = "";  ///< name in program texts; set by the registry
  const char* doc = "";   ///< semantics, in a line or two
  Role role = Role::collective;
  Takes takes = Takes::any;
  Move move;
  /// Takes any number of inputs and moves each to the output with the same index. Otherwise the
  /// first input is moved to the last output.
  bool list = false;
  /// An output may be in-place, in the buffer of its input.
  bool in_place = false;
  /// Takes a second input: rows of routed tensors per rank and expert, i64[members, experts],
  /// gathered by a `makes_sizes` op of the same routing.
  bool needs_sizes = false;
  /// Returns a first output: the inputs of all members, i64[members, experts].
  bool makes_sizes = false;
  /// Bytes that a rank sends or receives, whichever is more: the message size of the algorithms'
  /// costs.
  int64_t (*payload)(const Attrs&, std::span<const TensorType> in,
                     std::span<const TensorType> out) = nullptr;
  /// Algorithms among `members` ranks, at least one; null where the sender pays (receives).
  std::vector<Algorithm> (*algorithms)(double members, double payload) = nullptr;
  /// Executes one phase for member `me`. There is a barrier between phases. Throws Error when rows
  /// do not fit their buffer. Null for messages.
  void (*run)(const CollectiveArgs&, size_t me, int phase) = nullptr;
  int phases = 1;
  /// A phase may be executed in any number of parts, in order, so that late data delays only its
  /// part.
  bool divides = false;
  /// Returns the slices, besides sizes, that member `to` reads of member `from` in a phase: the
  /// data that a transport moves between processes. One of the two must be the calling member,
  /// which knows its types and sizes. Null for messages.
  std::vector<Slice> (*reads)(const CollectiveArgs&, size_t from, size_t to, int phase) = nullptr;
  /// Test cases among `members` ranks. Null for messages.
  std::vector<Sample> (*samples)(int64_t members) = nullptr;
};

/// Returns the record of an op. Requires: not Id::none.
const Op& op(Id id);
/// Finds an op by its name in program texts; none if there is no such communication op.
Id find(std::string_view name);
const std::vector<const Op*>& all();
/// Returns the op that sums lists of partial values over a group.
const Op& summing();
/// Returns the op of a message's role. Requires: not Role::collective.
const Op& message(Role role);

/// Returns the placement that a value must have on an axis of the group. Messages keep any
/// placement. Throws Error when an attribute is missing.
Placement before(const Op& op, const Attrs& attrs);
/// Returns the placement that a value then has on this axis. Messages keep any placement. Throws
/// Error when an attribute is missing.
Placement after(const Op& op, const Attrs& attrs);

/// Movement with its dims resolved from the attributes Move::part_dim and Move::slot_dim. Throws
/// Error when an attribute is missing.
struct Movement {
  Move move;
  int part_dim = 0, slot_dim = 0;
  /// Placed::sum: reduction of the parts; attribute `monoid` ("max"), by default a sum.
  graph::Monoid monoid = graph::Monoid::sum;
  /// Move::in_parts: attribute `outer`; 1 for a dim other than 0.
  int64_t part_outer = 1, slot_outer = 1;
  /// Part::block: attribute kBlocks.
  std::vector<int64_t> blocks = {};
};
Movement movement(const Op& op, const Attrs& attrs);

/// Returns the dim that the attribute states; 0 for null. Throws Error when it is missing or out of
/// range. Both inference and execution read dims by this function alone.
int dim_of(const Attrs& attrs, const char* attribute);

/// Returns attribute `outer` of an op with Move::in_parts, 1 without one. Throws Error unless it is
/// 1 to 65,536.
int64_t outer_of(const Attrs& attrs);

/// Attributes with the length of each member along an unevenly cut dim, in group order ("3,2,2").
/// kSlots belongs to the dim along which parts are concatenated, kBlocks to the dim cut into a
/// block per member. For rows of experts, the lengths are tokens.
inline constexpr const char* kSlots = "slots";
inline constexpr const char* kBlocks = "blocks";
/// Returns the lengths of such an attribute; empty without it. Throws Error for a malformed list.
std::vector<int64_t> lengths_of(const Attrs& attrs, const char* attribute);
void set_lengths(const std::vector<int64_t>& lengths, const char* attribute, Attrs* attrs);
/// Returns whether one of the two attributes is set.
bool has_lengths(const Attrs& attrs);

/// Returns the reduction of attribute `monoid`, by default a sum. Throws Error for an unknown one.
graph::Monoid monoid_of(const Attrs& attrs);

/// Numbers of inputs and outputs of a task.
struct Arity {
  size_t in = 0, out = 0;
  bool operator==(const Arity&) const = default;
};
Arity arity(const Op& op, size_t inputs);

/// Infers the local output types of member `me` in a group of `members` ranks. Members differ only
/// where they do not divide a cut dim (graph::share): experts of an exchange, the dim of attribute
/// `size`, or lengths given by kSlots and kBlocks. Throws Error when the op does not take such
/// inputs. Not for receives and transfers: their type is set at the other end.
std::vector<TensorType> infer(const Op& op, const Attrs& attrs, std::span<const TensorType> in,
                              int64_t members, int64_t me = 0);

/// Returns whether members with these types may meet in one call of the op. Types must be equal,
/// except for the experts of an exchange, the length along a cut dim, and the sides of a transfer.
struct Types {
  std::span<const TensorType> in, out;
};
bool types_match(const Op& op, const Attrs& attrs, const Types& one, const Types& other);

/// Uneven sharing in a resharding: the member `me` of the given local type, and the total number of
/// experts, or the total length of a concatenated dim; 0: equal shares. Or the length of each
/// member: see kSlots.
struct Sharing {
  int64_t me = 0;
  graph::Dim experts = 0;
  int64_t size = 0;
  std::vector<int64_t> slots = {}, blocks = {};
};
/// Collective that changes the placement of a value on an axis of `members` ranks.
struct Resharding {
  const Op* op = nullptr;
  Attrs attrs;
  std::vector<TensorType> in, out;  ///< local types, sizes included
  int64_t payload = 0;
  double bytes = 0;   ///< through a rank's link, by the algorithm with the fewest bytes
  double rounds = 0;  ///< of the algorithm with the fewest rounds
};
/// Returns the first op that takes a value of type `local` from placement `from` to `to`; nothing
/// if there is none.
std::optional<Resharding> resharding(const TensorType& local, Placement from, Placement to,
                                     int64_t members, const Sharing& sharing = {});

}  // namespace hocket::comm
