// SPDX-License-Identifier: Apache-2.0
// Filters as functions of a call; filters.cc has their table.
#pragma once

#include <string>
#include <string_view>

#include "data/chat/operations.h"

namespace hocket::data::jinja {

/// A call of a filter: `subject | name(arguments)`.
struct FilterCall {
  Budget* budget;
  std::string_view name;
  const Value& subject;
  const Arguments& arguments;

  Bound bind(std::initializer_list<std::string_view> parameters) const {
    return {name, arguments, parameters};
  }
  /// jinja2's soft_str: a Markup stays one.
  Value soft_text() const {
    return subject.is_text() ? subject : Value::text(to_text(budget, subject));
  }
  /// The subject's method of the same or another name, on its text.
  Value method(std::string method, Arguments given) const {
    return call_method(budget, Method{soft_text(), std::move(method)}, given);
  }
};

// Filters of sequences and mappings.
Value filter_length(const FilterCall& call);
Value filter_default(const FilterCall& call);
Value filter_first(const FilterCall& call);
Value filter_last(const FilterCall& call);
Value filter_list(const FilterCall& call);
Value filter_reverse(const FilterCall& call);
Value filter_join(const FilterCall& call);
Value filter_items(const FilterCall& call);
Value filter_dictsort(const FilterCall& call);
Value filter_sort(const FilterCall& call);
Value filter_unique(const FilterCall& call);
Value filter_extreme(const FilterCall& call);
Value filter_sum(const FilterCall& call);
Value filter_batch(const FilterCall& call);
Value filter_slice(const FilterCall& call);
Value filter_groupby(const FilterCall& call);
Value filter_map(const FilterCall& call);
Value filter_select(const FilterCall& call);
Value filter_attr(const FilterCall& call);

}  // namespace hocket::data::jinja
