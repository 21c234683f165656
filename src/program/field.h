// SPDX-License-Identifier: Apache-2.0
// Fields of a program's structs, named once. A struct lists its members in `fields()`, in the order
// of the text form; printing, parsing, hashing and comparing walk that list:
//
//   struct Group {
//     std::vector<int32_t> axes;
//     std::vector<int32_t> members;
//     template <class Visitor>
//     static constexpr void fields(Visitor&& visit) {
//       visit(Field("axes").refers_to(Ref::axis), &Group::axes);
//       visit(Field("members"), &Group::members);
//     }
//   };
//
// A member that the list lacks does not compile: for_each_field counts the members.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/members.h"

namespace hocket::program {

/// Referent of the number (or numbers) in a field: an index into a list, which another program may
/// have in another order.
enum class Ref : uint8_t {
  none,
  role,
  kind,
  group,
  axis,  ///< of the mesh of the thing's role
  table,
  buffer,
  task,
  graph_node,
  graph_tensor
};

/// A field as its readers know it. In the text it is `name=value` and left out when it has its
/// default value, unless stated otherwise.
struct Field {
  constexpr explicit Field(const char* field_name) : name(field_name) {}

  const char* name;
  Ref refers = Ref::none;
  bool is_word = false;
  bool is_always = false;
  bool is_follower = false;
  bool is_label = false;
  bool is_label_of_step = false;
  bool is_address = false;
  bool is_cache = false;

  constexpr Field refers_to(Ref what) const { return with(&Field::refers, what); }
  /// Text: a word in its place, without its name.
  constexpr Field word() const { return with(&Field::is_word, true); }
  /// Text: also when it has its default value.
  constexpr Field always() const { return with(&Field::is_always, true); }
  /// Text: also when the field before it is there.
  constexpr Field follows() const { return with(&Field::is_follower, true); }
  /// Has no effect on the program's behaviour: excluded from its hash.
  constexpr Field label() const { return with(&Field::is_label, true); }
  /// The same, in step buffers only.
  constexpr Field label_of_step() const { return with(&Field::is_label_of_step, true); }
  /// A number that a rewrite may change without changing the thing: an offset, a message number.
  /// Excluded from comparisons of programs.
  constexpr Field address() const { return with(&Field::is_address, true); }
  /// Follows from the other fields: neither printed, nor hashed, nor compared.
  constexpr Field cache() const { return with(&Field::is_cache, true); }

 private:
  template <class Value>
  constexpr Field with(Value Field::*member, Value value) const {
    Field changed = *this;
    changed.*member = value;
    return changed;
  }
};

namespace field_detail {
struct Counter {
  size_t count = 0;
  template <class Member>
  constexpr void operator()(const Field&, Member) {
    ++count;
  }
};
template <class Struct>
constexpr size_t num_listed() {
  Counter counter;
  Struct::fields(counter);
  return counter.count;
}
}  // namespace field_detail

/// Calls `visit(field, pointer to member)` for every field of Struct.
template <class Struct, class Visitor>
constexpr void for_each_field(Visitor&& visit) {
  static_assert(field_detail::num_listed<Struct>() == num_members<Struct>(),
                "fields() lacks a member of the struct, or names one twice");
  Struct::fields(visit);
}

/// A type with fields of its own.
template <class Struct>
concept HasFields = requires(field_detail::Counter counter) {
  Struct::fields(counter);
};

/// Set for lists of such: each entry has a line of the text of its own.
template <class Member>
inline constexpr bool kIsList = false;
template <HasFields Struct>
inline constexpr bool kIsList<std::vector<Struct>> = true;

/// Set for types with values that follow from other fields: those of cache() fields.
template <class Member>
inline constexpr bool kIsCache = false;

}  // namespace hocket::program
