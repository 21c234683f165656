// SPDX-License-Identifier: Apache-2.0
// Values of chat templates, with Python's semantics: what jinja2 computes on, in C++. Containers
// are immutable and shared; only a namespace changes, and the render that made it owns it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/core.h>

namespace hocket::data::jinja {

/// A fault while a template runs; the renderer adds the line and makes it an Error.
struct Fault {
  std::string text;
  bool raised = false;  ///< by the template itself, with raise_exception
};

template <typename... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> what, Args&&... args) {
  throw Fault{fmt::format(what, std::forward<Args>(args)...)};
}

/// Work that one render may do, so that a hostile template ends.
struct Limits {
  int64_t max_steps = 50'000'000;        ///< expressions, iterations, elements compared
  int64_t max_bytes = int64_t{1} << 30;  ///< of all strings and lists made, not only kept
  int64_t max_output_bytes = int64_t{256} << 20;
  int max_depth = 600;  ///< statements and expressions inside one another, over macros
};

/// Work left to a render. Throws Fault when it is used up.
class Budget {
 public:
  explicit Budget(const Limits& limits) : steps_(limits.max_steps), bytes_(limits.max_bytes) {}
  void steps(int64_t count = 1) {
    if ((steps_ -= count) < 0) refuse("takes more steps than a chat template may");
  }
  /// Adds `count` bytes of text or containers, and their share of steps.
  void bytes(int64_t count) {
    if ((bytes_ -= count) < 0) refuse("makes more text than a chat template may");
    steps(1 + count / 64);
  }

 private:
  int64_t steps_, bytes_;
};

class Value;
struct Dict;
struct Iterator;
struct Method;
class Object;

struct Undefined {
  std::shared_ptr<const std::string> why;  ///< text of the fault that using it gives
};
struct None {};
struct Text {
  std::shared_ptr<const std::string> bytes;  ///< UTF-8
  bool markup = false;                       ///< a markupsafe.Markup, made by the filter `safe`
};
struct List {
  enum class Kind : uint8_t { list, tuple, range, items, keys, values };
  Kind kind = Kind::list;
  int depth = 1;  ///< levels of containers, its own included
  std::vector<Value> items;
};

class Value {
 public:
  using Data = std::variant<Undefined, None, bool, int64_t, double, Text,
                            std::shared_ptr<const List>, std::shared_ptr<const Dict>,
                            std::shared_ptr<Iterator>, std::shared_ptr<const Method>, Object*>;
  enum class Type : uint8_t {
    undefined,
    none,
    boolean,
    integer,
    real,
    text,
    list,
    dict,
    iterator,
    method,
    object
  };

  Value() = default;
  static Value undefined(std::string why) {
    return Value(Data(Undefined{std::make_shared<const std::string>(std::move(why))}));
  }
  static Value none() { return Value(Data(None{})); }
  static Value boolean(bool b) { return Value(Data(b)); }
  static Value integer(int64_t i) { return Value(Data(i)); }
  static Value real(double d) { return Value(Data(d)); }
  static Value text(std::string bytes, bool markup = false) {
    return Value(Data(Text{std::make_shared<const std::string>(std::move(bytes)), markup}));
  }
  /// Throws Fault if values are nested too deep.
  static Value list(std::vector<Value> items, List::Kind kind = List::Kind::list);
  static Value dict(Dict dict);
  static Value iterator(std::function<bool(Value*)> next, int depth,
                        const char* type = "generator");
  static Value method(Value self, std::string name);
  static Value object(Object* object) { return Value(Data(object)); }

  Type type() const { return static_cast<Type>(data_.index()); }
  bool is(Type type) const { return this->type() == type; }
  bool is_undefined() const { return is(Type::undefined); }
  bool is_none() const { return is(Type::none); }
  bool is_text() const { return is(Type::text); }
  bool is_list() const { return is(Type::list); }  ///< of any kind
  bool is_dict() const { return is(Type::dict); }
  /// bool and int, Python's int.
  bool is_integral() const { return is(Type::integer) || is(Type::boolean); }
  bool is_number() const { return is_integral() || is(Type::real); }

  bool as_bool() const { return std::get<bool>(data_); }
  int64_t as_int() const { return is(Type::boolean) ? as_bool() : std::get<int64_t>(data_); }
  double as_real() const {
    return is(Type::real) ? std::get<double>(data_) : static_cast<double>(as_int());
  }
  const std::string& as_text() const { return *std::get<Text>(data_).bytes; }
  bool markup() const { return is_text() && std::get<Text>(data_).markup; }
  const List& as_list() const { return *std::get<std::shared_ptr<const List>>(data_); }
  const std::vector<Value>& items() const { return as_list().items; }
  bool is_kind(List::Kind kind) const { return is_list() && as_list().kind == kind; }
  const Dict& as_dict() const { return *std::get<std::shared_ptr<const Dict>>(data_); }
  Iterator& as_iterator() const { return *std::get<std::shared_ptr<Iterator>>(data_); }
  const Method& as_method() const { return *std::get<std::shared_ptr<const Method>>(data_); }
  Object* as_object() const { return std::get<Object*>(data_); }
  /// Text of the fault that using an undefined value gives.
  std::string why_undefined() const;
  int depth() const;
  /// Returns Python's `is`.
  bool same(const Value& other) const;

 private:
  explicit Value(Data data) : data_(std::move(data)) {}
  Data data_;
};

/// Ordered as inserted. Keys are what Python can hash.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  std::unordered_map<std::string, size_t> places;  ///< by hash_key, of dicts that are not small
  int depth = 1;

  /// Inserts, or replaces in place. Throws Fault for a key that cannot be hashed.
  void set(Budget* budget, const Value& key, Value value);
  const Value* find(Budget* budget, const Value& key) const;
  const Value* find(std::string_view key) const;
};

/// Elements on demand: a Python generator, which is consumed once.
struct Iterator {
  std::function<bool(Value*)> next;
  int depth = 1;
  const char* type = "generator";
};

/// A method bound to its object.
struct Method {
  Value self;
  std::string name;
  int depth = 1;
};

/// Arguments of a call.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

/// Anything that has identity: namespaces, macros, functions, `loop`.
class Object {
 public:
  virtual ~Object() = default;
  virtual const char* type() const = 0;
  virtual std::string repr(Budget* budget, int depth) const = 0;
  /// Finds an attribute. Returns false if there is none of this name.
  virtual bool attribute(std::string_view, Value*) { return false; }
  virtual bool callable() const { return true; }
  virtual Value call(const Arguments& arguments) = 0;
};

constexpr int kMaxValueDepth = 200;

bool truthy(const Value& value);
/// Name of Python's type: "str", "NoneType", "dict_items".
std::string type_name(const Value& value);
/// Type as it stands in jinja2's messages: "str object", "None".
std::string type_in_message(const Value& value);
/// Throws its fault if the value is undefined.
void require_defined(const Value& value);

/// Bytes that are equal for equal keys. False for a value that Python cannot hash.
bool hash_key(Budget* budget, const Value& value, std::string* key);
bool equal(Budget* budget, const Value& a, const Value& b);
constexpr int kUnordered = 2;
/// Returns -1, 0, 1, or kUnordered for NaN; `operation` ("<") names it in the fault for values
/// without an order.
int compare(Budget* budget, const Value& a, const Value& b, const char* operation);

/// Python's str() and repr().
std::string to_text(Budget* budget, const Value& value);
std::string to_repr(Budget* budget, const Value& value, int depth = 0);
std::string repr_of_real(double value);
std::string repr_of_text(std::string_view text);

struct JsonStyle {
  bool ascii = false;
  bool sort_keys = false;
  bool lines = false;  ///< a member a line, after `indent` per level
  std::string indent;
  std::string item_separator = ", ", key_separator = ": ";
};
/// Python's json.dumps.
std::string to_json(Budget* budget, const Value& value, const JsonStyle& style);

/// Escapes & < > " ' as markupsafe does.
std::string escape_html(std::string_view text);

}  // namespace hocket::data::jinja
