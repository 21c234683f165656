// SPDX-License-Identifier: Apache-2.0
// Implements: filters of sequences and mappings (filter_call.h).
#include <algorithm>
#include <functional>

#include "base/text.h"
#include "data/chat/filter_call.h"
#include "data/chat/filters.h"
#include "data/chat/python_text.h"

namespace hocket::data::jinja {
namespace {

using Type = Value::Type;

Value lower_if_text(const Value& value) {
  return value.is_text() ? Value::text(to_lower(value.as_text()), value.markup()) : value;
}

// Reader of "a.b.0" in an element, as in map(attribute=..) and sort(attribute=..).
class AttributeReader {
 public:
  AttributeReader(Budget* budget, const Value* attribute, bool fold_case, Value otherwise = {})
      : budget_(budget), fold_case_(fold_case), otherwise_(std::move(otherwise)) {
    if (attribute == nullptr || attribute->is_none()) return;
    if (!attribute->is_text()) {
      parts_ = {*attribute};
      return;
    }
    for (const std::string& part : split(attribute->as_text(), '.')) {
      int64_t index = 0;
      const bool number =
          !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
      parts_.push_back(number && parse_int(part, &index) ? Value::integer(index)
                                                         : Value::text(part));
    }
  }
  Value operator()(Value item) const {
    for (const Value& part : parts_) {
      item = get_item(budget_, item, part);
      if (item.is_undefined() && !otherwise_.is_undefined()) {
        item = otherwise_;
      }
    }
    return fold_case_ ? lower_if_text(item) : item;
  }

 private:
  Budget* budget_;
  std::vector<Value> parts_;
  bool fold_case_;
  Value otherwise_;
};

void sort_by_key(Budget* budget, std::vector<std::pair<Value, Value>>* keyed, bool reverse) {
  const auto less = [&](const auto& a, const auto& b) {
    return compare(budget, a.first, b.first, "<") == -1;
  };
  // Equal elements keep their order, also where the order is reversed.
  if (reverse) {
    std::reverse(keyed->begin(), keyed->end());
  }
  std::stable_sort(keyed->begin(), keyed->end(), less);
  if (reverse) {
    std::reverse(keyed->begin(), keyed->end());
  }
}

}  // namespace

Value filter_length(const FilterCall& call) {
  call.bind({});
  const auto length = length_of(call.subject);
  if (!length) refuse("object of type '{}' has no len()", type_name(call.subject));
  call.budget->steps(*length / 64);
  return Value::integer(*length);
}

Value filter_default(const FilterCall& call) {
  const Bound bound = call.bind({"default_value", "boolean"});
  const bool missing =
      call.subject.is_undefined() || (bound.flag(1, false) && !truthy(call.subject));
  if (!missing) return call.subject;
  return bound.find(0) != nullptr ? *bound.find(0) : Value::text("");
}

Value filter_first(const FilterCall& call) {
  call.bind({});
  Value out;
  if (iterate(call.budget, call.subject)(&out)) return out;
  return Value::undefined("No first item, sequence was empty.");
}

Value filter_last(const FilterCall& call) {
  call.bind({});
  const Value& subject = call.subject;
  if (subject.is(Type::iterator) || !is_iterable(subject)) {
    refuse("'{}' object is not reversible", type_name(subject));
  }
  const std::vector<Value> items = elements_of(call.budget, subject);
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Value filter_list(const FilterCall& call) {
  call.bind({});
  return Value::list(elements_of(call.budget, call.subject));
}

Value filter_reverse(const FilterCall& call) {
  call.bind({});
  const Value& subject = call.subject;
  if (subject.is_text()) {
    const Value step = Value::integer(-1);
    return get_slice(call.budget, subject, nullptr, nullptr, &step);
  }
  if (!is_iterable(subject)) refuse("argument must be iterable");
  std::vector<Value> items = elements_of(call.budget, subject);
  std::reverse(items.begin(), items.end());
  if (subject.is(Type::iterator) || subject.is_undefined()) return Value::list(std::move(items));
  const Value reversed = Value::list(std::move(items));
  return Value::iterator(iterate(call.budget, reversed), reversed.depth(), "list_reverseiterator");
}

Value filter_join(const FilterCall& call) {
  const Bound bound = call.bind({"d", "attribute"});
  const std::string separator =
      bound.find(0) != nullptr ? to_text(call.budget, *bound.find(0)) : "";
  const AttributeReader read(call.budget, bound.find(1), false);
  const Next next = iterate(call.budget, call.subject);
  std::string out;
  bool first = true;
  for (Value item; next(&item); first = false) {
    out += first ? "" : separator;
    out += to_text(call.budget, read(item));
    call.budget->bytes(static_cast<int64_t>(separator.size()));
  }
  return Value::text(std::move(out));
}

Value filter_items(const FilterCall& call) {
  call.bind({});
  if (!call.subject.is_undefined() && !call.subject.is_dict()) {
    refuse("Can only get item pairs from a mapping.");
  }
  Value pairs = Value::list({});
  if (call.subject.is_dict()) {
    pairs = call_method(call.budget, Method{call.subject, "items"}, {});
  }
  return Value::iterator(iterate(call.budget, pairs), pairs.depth());
}

Value filter_dictsort(const FilterCall& call) {
  const Bound bound = call.bind({"case_sensitive", "by", "reverse"});
  const std::string by = bound.find(1) != nullptr ? bound.text(1) : "key";
  if (by != "key" && by != "value") refuse("You can only sort by either \"key\" or \"value\"");
  if (!call.subject.is_dict()) {
    require_defined(call.subject);
    refuse("'{}' object has no attribute 'items'", type_name(call.subject));
  }
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, value] : call.subject.as_dict().items) {
    const Value& sorted = by == "key" ? key : value;
    keyed.emplace_back(bound.flag(0, false) ? sorted : lower_if_text(sorted),
                       Value::list({key, value}, List::Kind::tuple));
    call.budget->bytes(static_cast<int64_t>(4 * sizeof(Value)));
  }
  sort_by_key(call.budget, &keyed, bound.flag(2, false));
  std::vector<Value> out;
  for (auto& [key, pair] : keyed) {
    out.push_back(std::move(pair));
  }
  return Value::list(std::move(out));
}

Value filter_sort(const FilterCall& call) {
  const Bound bound = call.bind({"reverse", "case_sensitive", "attribute"});
  const bool fold_case = !bound.flag(1, false);
  std::vector<AttributeReader> readers;
  if (bound.find(2) != nullptr && bound.find(2)->is_text()) {
    for (const std::string& attribute : split(bound.text(2), ',')) {
      const Value name = Value::text(attribute);
      readers.emplace_back(call.budget, &name, fold_case);
    }
  } else {
    readers.emplace_back(call.budget, bound.find(2), fold_case);
  }
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : elements_of(call.budget, call.subject)) {
    std::vector<Value> keys;
    for (const AttributeReader& read : readers) {
      keys.push_back(read(item));
    }
    call.budget->bytes(std::ssize(keys) * static_cast<int64_t>(sizeof(Value)));
    keyed.emplace_back(Value::list(std::move(keys)), std::move(item));
  }
  sort_by_key(call.budget, &keyed, bound.flag(0, false));
  std::vector<Value> out;
  for (auto& [key, item] : keyed) {
    out.push_back(std::move(item));
  }
  return Value::list(std::move(out));
}

Value filter_unique(const FilterCall& call) {
  const Bound bound = call.bind({"case_sensitive", "attribute"});
  const AttributeReader read(call.budget, bound.find(1), !bound.flag(0, false));
  Dict seen;
  std::vector<Value> out;
  for (Value& item : elements_of(call.budget, call.subject)) {
    const Value key = read(item);
    const auto before = seen.items.size();
    seen.set(call.budget, key, Value::none());
    if (seen.items.size() > before) {
      out.push_back(std::move(item));
    }
  }
  const Value list = Value::list(std::move(out));
  return Value::iterator(iterate(call.budget, list), list.depth());
}

Value filter_extreme(const FilterCall& call) {
  const Bound bound = call.bind({"case_sensitive", "attribute"});
  const AttributeReader read(call.budget, bound.find(1), !bound.flag(0, false));
  const bool largest = call.name == "max";
  Value best, best_key;
  bool any = false;
  for (Value& item : elements_of(call.budget, call.subject)) {
    Value key = read(item);
    if (!any || (largest ? compare(call.budget, key, best_key, ">") == 1
                         : compare(call.budget, key, best_key, "<") == -1)) {
      best = std::move(item);
      best_key = std::move(key);
    }
    any = true;
  }
  return any ? best : Value::undefined("No aggregated item, sequence was empty.");
}

Value filter_sum(const FilterCall& call) {
  const Bound bound = call.bind({"attribute", "start"});
  const AttributeReader read(call.budget, bound.find(0), false);
  Value out = bound.find(1) != nullptr ? *bound.find(1) : Value::integer(0);
  if (out.is_text()) refuse("sum() can't sum strings [use ''.join(seq) instead]");
  const Next next = iterate(call.budget, call.subject);
  for (Value item; next(&item);) {
    out = arithmetic(call.budget, Expr::Op::add, out, read(item));
  }
  return out;
}

Value filter_batch(const FilterCall& call) {
  const Bound bound = call.bind({"linecount", "fill_with"});
  const int64_t size = index_of(bound.at(0));
  if (size < 1) refuse("batch expects at least 1 as linecount, not {}", size);
  std::vector<Value> out, batch;
  const auto flush = [&] {
    out.push_back(Value::list(std::move(batch)));
    batch.clear();
  };
  for (Value& item : elements_of(call.budget, call.subject)) {
    if (std::ssize(batch) == size) {
      flush();
    }
    batch.push_back(std::move(item));
  }
  if (!batch.empty()) {
    if (bound.find(1) != nullptr && !bound.find(1)->is_none()) {
      call.budget->bytes((size - std::ssize(batch)) * static_cast<int64_t>(sizeof(Value)));
      batch.resize(static_cast<size_t>(size), *bound.find(1));
    }
    flush();
  }
  const Value list = Value::list(std::move(out));
  return Value::iterator(iterate(call.budget, list), list.depth());
}

Value filter_slice(const FilterCall& call) {
  const Bound bound = call.bind({"slices", "fill_with"});
  const int64_t slices = index_of(bound.at(0));
  if (slices < 1) refuse("slice expects at least 1 as slices, not {}", slices);
  const std::vector<Value> items = elements_of(call.budget, call.subject);
  call.budget->bytes(slices > (int64_t{1} << 40) ? slices
                                                 : slices * static_cast<int64_t>(sizeof(Value)));
  const int64_t each = std::ssize(items) / slices, extra = std::ssize(items) % slices;
  const Value* fill = bound.find(1);
  std::vector<Value> out;
  int64_t at = 0;
  for (int64_t i = 0; i < slices; ++i) {
    const int64_t size = each + (i < extra ? 1 : 0);
    std::vector<Value> part(items.begin() + at, items.begin() + at + size);
    if (fill != nullptr && !fill->is_none() && i >= extra) {
      part.push_back(*fill);
    }
    at += size;
    out.push_back(Value::list(std::move(part)));
  }
  const Value list = Value::list(std::move(out));
  return Value::iterator(iterate(call.budget, list), list.depth());
}

Value filter_groupby(const FilterCall& call) {
  const Bound bound = call.bind({"attribute", "default", "case_sensitive"});
  const bool fold_case = !bound.flag(2, false);
  const Value otherwise = bound.find(1) != nullptr ? *bound.find(1) : Value();
  const AttributeReader key_of(call.budget, &bound.at(0), fold_case, otherwise);
  const AttributeReader shown(call.budget, &bound.at(0), false, otherwise);
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : elements_of(call.budget, call.subject)) {
    Value key = key_of(item);
    keyed.emplace_back(std::move(key), std::move(item));
  }
  sort_by_key(call.budget, &keyed, false);
  std::vector<Value> out;
  for (size_t i = 0; i < keyed.size();) {
    const size_t begin = i;
    std::vector<Value> group;
    for (; i < keyed.size() && equal(call.budget, keyed[begin].first, keyed[i].first); ++i) {
      group.push_back(keyed[i].second);
    }
    i = std::max(i, begin + 1);  // a NaN equals nothing, itself included
    const Value name = group.empty() ? keyed[begin].first : shown(group[0]);
    out.push_back(Value::list({name, Value::list(std::move(group))}, List::Kind::tuple));
  }
  return Value::list(std::move(out));
}

Value filter_map(const FilterCall& call) {
  Arguments rest = call.arguments;
  Budget* budget = call.budget;
  std::function<Value(const Value&)> change;
  if (rest.positional.empty()) {
    const Bound bound("map", rest, {"attribute", "default"});
    change = AttributeReader(
        budget, &bound.at(0), false,
        bound.find(1) != nullptr && !bound.find(1)->is_none() ? *bound.find(1) : Value());
  } else {
    const Value name = rest.positional[0];
    if (!name.is_text() || !is_filter(name.as_text())) {
      refuse("No filter named {}.",
             name.is_text() ? repr_of_text(name.as_text()) : type_name(name));
    }
    rest.positional.erase(rest.positional.begin());
    change = [=](const Value& item) { return apply_filter(budget, name.as_text(), item, rest); };
  }
  if (!truthy(call.subject)) return Value::iterator([](Value*) { return false; }, 0);
  int depth = call.subject.depth();
  for (const Value& value : call.arguments.positional) {
    depth = std::max(depth, value.depth());
  }
  return Value::iterator(
      [next = iterate(budget, call.subject), change](Value* out) {
        Value item;
        if (!next(&item)) return false;
        *out = change(item);
        return true;
      },
      depth);
}

Value filter_select(const FilterCall& call) {
  Arguments rest = call.arguments;
  Budget* budget = call.budget;
  const bool keep = call.name.starts_with("select"), by_attribute = call.name.ends_with("attr");
  Value attribute, test;
  int depth = call.subject.depth();
  for (const Value& value : rest.positional) {
    depth = std::max(depth, value.depth());
  }
  const auto take = [&](Value* out) {
    *out = rest.positional[0];
    rest.positional.erase(rest.positional.begin());
  };
  if (by_attribute) {
    if (rest.positional.empty()) refuse("Missing parameter for attribute name");
    take(&attribute);
  }
  const bool has_test = !rest.positional.empty();
  if (has_test) {
    take(&test);
    if (!test.is_text() || !is_test(test.as_text())) {
      refuse("No test named {}.", test.is_text() ? repr_of_text(test.as_text()) : type_name(test));
    }
  }
  if (!truthy(call.subject)) return Value::iterator([](Value*) { return false; }, 0);
  const AttributeReader read(budget, by_attribute ? &attribute : nullptr, false);
  return Value::iterator(
      [=, next = iterate(budget, call.subject)](Value* out) {
        for (Value item; next(&item);) {
          const Value tested = read(item);
          const bool good =
              has_test ? apply_test(budget, test.as_text(), tested, rest) : truthy(tested);
          if (good == keep) {
            *out = std::move(item);
            return true;
          }
        }
        return false;
      },
      depth);
}

Value filter_attr(const FilterCall& call) {
  const std::string name = call.bind({"name"}).text(0);
  require_defined(call.subject);
  Value out;
  if (find_attribute(call.subject, name, &out)) return out;
  return Value::undefined(
      fmt::format("'{}' has no attribute {}", type_in_message(call.subject), repr_of_text(name)));
}

}  // namespace hocket::data::jinja
