// SPDX-License-Identifier: Apache-2.0
// Implements: parse_program (program.h): every line into the struct that prints it. An unknown word
// is an error, and so is an id that names nothing.
#include <fmt/format.h>

#include <charconv>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "program/text.h"

namespace hocket::program {
namespace {

/// Fault of a line; parse_program adds the position.
struct BadLine {
  std::string why;
};

[[noreturn]] void bad(std::string why) { throw BadLine{std::move(why)}; }

template <class Number>
Number parse_number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    bad(fmt::format("'{}' is not a number", text));
  }
  return value;
}

/// A line, cut into words at blanks outside quotes. Reading a word takes it.
class Words {
 public:
  explicit Words(std::string_view text) {
    while (!text.empty()) {
      size_t end = 0;
      bool quoted = false;
      while (end < text.size() && (quoted || text[end] != ' ')) {
        quoted ^= text[end++] == '"';
      }
      if (end > 0) {
        words_.push_back(text.substr(0, end));
      }
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    taken_.assign(words_.size(), false);
  }

  /// The next word that stands in its place.
  std::string_view next() {
    if (next_ >= words_.size()) {
      bad("a word is missing");
    }
    taken_[next_] = true;
    return words_[next_++];
  }
  /// The value of name=value behind the words, without its quotes. False if there is none.
  bool find(std::string_view name, std::string_view* value) {
    for (size_t i = next_; i < words_.size(); ++i) {
      const std::string_view word = words_[i];
      if (taken_[i] || word.size() <= name.size() || word[name.size()] != '=' ||
          !word.starts_with(name)) {
        continue;
      }
      taken_[i] = true;
      *value = unquoted(word.substr(name.size() + 1));
      return true;
    }
    return false;
  }
  /// Refuses a line with another number: a lost one must not give the others other numbers.
  void expect_number(std::string_view what, std::string_view prefix, size_t expected) {
    const std::string_view word = next();
    if (!word.starts_with(prefix)) {
      bad(fmt::format("expected a {} {}<n>", what, prefix));
    }
    if (const auto got = parse_number<int64_t>(word.substr(prefix.size()));
        got != static_cast<int64_t>(expected)) {
      bad(fmt::format("{} {} stands where {} is expected", what, got, expected));
    }
  }
  void expect_all_taken() const {
    for (size_t i = 0; i < words_.size(); ++i) {
      if (!taken_[i]) {
        bad(fmt::format("'{}' is unknown here, or comes twice", words_[i]));
      }
    }
  }
  static std::string_view unquoted(std::string_view text) {
    const bool quotes = text.size() >= 2 && text.front() == '"' && text.back() == '"';
    return quotes ? text.substr(1, text.size() - 2) : text;
  }

 private:
  std::vector<std::string_view> words_;
  std::vector<bool> taken_;
  size_t next_ = 0;
};

/// Reads the lines of one program.
class Parser {
 public:
  Parser() { program.roles.clear(); }

  Program program;

  /// A line after the header and before the end.
  void line(std::string_view raw);

 private:
  /// The number of a line of its own.
  int32_t count(Words& words, std::string_view what) const {
    constexpr int64_t kMaxCount = 1 << 20;
    const auto number = parse_number<int64_t>(words.next());
    if (number < 1 || number > kMaxCount) {
      bad(fmt::format("{} is {}; expected 1 to {}", what, number, kMaxCount));
    }
    words.expect_all_taken();
    return static_cast<int32_t>(number);
  }
  // One overload per type that a field may have.
  void read(std::string_view text, bool* value) const {
    const auto number = parse_number<int64_t>(text);
    if (number != 0 && number != 1) {
      bad(fmt::format("'{}' is neither 0 nor 1", text));
    }
    *value = number == 1;
  }
  void read(std::string_view text, int32_t* value) const { *value = narrow<int32_t>(text); }
  void read(std::string_view text, int64_t* value) const { *value = parse_number<int64_t>(text); }
  void read(std::string_view text, double* value) const { *value = parse_number<double>(text); }
  void read(std::string_view text, OutputSet* value) const {
    *value = OutputSet::of_bits(narrow<uint32_t>(text));
  }
  void read(std::string_view text, Lane* value) const { *value = parse_lane(text); }
  void read(std::string_view text, Phase* value) const { *value = parse_phase(text); }
  void read(std::string_view text, BufferKind* value) const { *value = parse_buffer_kind(text); }
  void read(std::string_view text, Space* value) const { *value = parse_space(text); }
  void read(std::string_view text, Attrs* value) const { *value = graph::parse_attrs(text); }
  void read(std::string_view text, TensorType* value) const {
    *value = graph::parse_tensor_type(text);
    if (const std::string why = graph::symbols_differ(*value, program.symbols); !why.empty()) {
      bad(why);
    }
  }
  void read(std::string_view text, Layout* value) const {
    *value = graph::parse_layout(text, program.roles[role_].mesh);
  }
  void read(std::string_view text, Box* value) const {
    *value = parse_box(text, program.roles[role_].mesh);
  }
  void read(std::string_view text, Mesh* value) const { *value = graph::parse_mesh(text); }
  void read(std::string_view text, std::string* value) const {
    if (!unescape(text, value)) {
      bad(fmt::format("'{}' has a backslash that begins no \\xHH", text));
    }
  }
  void read(std::string_view text, std::vector<TensorType>* types) const {
    each(text, ' ', [&](std::string_view type) {
      if (!type.empty()) {
        read(type, &types->emplace_back());
      }
    });
  }
  template <class Of>
  void read(std::string_view text, Id<Of>* value) const {
    *value = narrow<int32_t>(text);
  }
  template <class Number>
  void read(std::string_view text, std::vector<Number>* numbers) const {
    each(text, ',', [&](std::string_view number) { read(number, &numbers->emplace_back()); });
  }

  /// "s128,t0@3": letter, number, and perhaps the table that is added to it.
  void read(std::string_view text, std::vector<PieceOffset>* offsets) const {
    each(text, ',', [&](std::string_view one) {
      PieceOffset& begin = offsets->emplace_back();
      if (one.empty()) {
        bad("a begin has no letter");
      }
      begin.letter = one[0];
      one.remove_prefix(1);
      const size_t table = std::min(one.find('@'), one.size());
      begin.begin = parse_number<int64_t>(one.substr(0, table));
      if (table < one.size()) {
        begin.by = narrow<int32_t>(one.substr(table + 1));
      }
    });
  }

  /// "0:5.2": part 0 waits for part 2 of task 5.
  void read(std::string_view text, std::vector<PartDep>* deps) const {
    each(text, ',', [&](std::string_view one) {
      const size_t colon = one.find(':');
      const size_t dot = one.find('.');
      if (colon == one.npos || dot == one.npos || dot < colon) {
        bad(fmt::format("'{}' is no dependency of parts, as in 0:5.2", one));
      }
      deps->push_back({narrow<int32_t>(one.substr(0, colon)),
                       narrow<int32_t>(one.substr(colon + 1, dot - colon - 1)),
                       narrow<int32_t>(one.substr(dot + 1))});
    });
  }
  /// "0:a:B;12:b:ep:S0": where it begins, its name, its layout.
  void read(std::string_view text, std::vector<Slot>* slots) const {
    each(text, ';', [&](std::string_view one) {
      Slot& slot = slots->emplace_back();
      const size_t name = one.find(':');
      const size_t layout = name == one.npos ? name : one.find(':', name + 1);
      if (layout == one.npos) {
        bad(fmt::format("'{}' is no slot; expected begin:tensor:layout", one));
      }
      slot.begin = parse_number<int64_t>(one.substr(0, name));
      read(one.substr(name + 1, layout - name - 1), &slot.tensor);
      read(one.substr(layout + 1), &slot.layout);
    });
  }

  template <class Number>
  static Number narrow(std::string_view text) {
    const auto value = parse_number<int64_t>(text);
    if (!std::in_range<Number>(value)) {
      bad(fmt::format("'{}' is out of range", text));
    }
    return static_cast<Number>(value);
  }
  template <class Visitor>
  static void each(std::string_view list, char separator, Visitor&& visit) {
    while (!list.empty()) {
      const size_t end = std::min(list.find(separator), list.size());
      visit(list.substr(0, end));
      list.remove_prefix(std::min(end + 1, list.size()));
    }
  }

  /// The rest of the line, as the fields of `object`.
  template <class Struct>
  void fields(Words& words, Struct* object) {
    for_each_field<Struct>([&]<class Value>(const Field& field, Value Struct::*member) {
      if constexpr (!kIsList<Value> && !kIsCache<Value>) {
        std::string_view text;
        if (field.is_word) {
          text = Words::unquoted(words.next());
          if (field.refers == Ref::kind) {
            if (!text.starts_with("k")) {
              bad("expected a kind k<n>");
            }
            text.remove_prefix(1);
          }
        } else if (!words.find(field.name, &text)) {
          return;
        }
        read(text, &(object->*member));
        expect_exists(field, object->*member);
        if constexpr (std::is_same_v<Value, RoleId>) {
          expect_named(field, (object->*member).value());  // none is no role
          role_ = object->*member;  // role of the axes in the following fields
        }
      }
    });
    words.expect_all_taken();
  }

  /// Number of things of this kind named so far; kAny for those named later or never.
  static constexpr size_t kAny = SIZE_MAX;
  size_t num_named(Ref what) const {
    switch (what) {
      case Ref::kind:
        return program.kinds.size();
      case Ref::group:
        return program.groups.size();
      case Ref::role:
        return program.roles.size();
      case Ref::axis:
        return program.roles[role_].mesh.axes.size();
      case Ref::table:
        return program.tables.size();
      case Ref::buffer:
        return program.classes.back().buffers.size();
      default:
        return kAny;
    }
  }
  void expect_exists(const Field& field, int32_t id) const {
    if (id == kNone && !field.is_word) return;
    expect_named(field, id);
  }
  template <class Of>
  void expect_exists(const Field& field, Id<Of> id) const {
    expect_exists(field, id.value());
  }
  void expect_exists(const Field& field, const std::vector<int32_t>& ids) const {
    for (const int32_t id : ids) {
      expect_named(field, id);
    }
  }
  template <class Of>
  void expect_exists(const Field& field, const std::vector<Id<Of>>& ids) const {
    for (const Id<Of> id : ids) {
      expect_named(field, id.value());
    }
  }
  void expect_exists(const Field& field, const std::vector<PartDep>& deps) const {
    for (const PartDep& dep : deps) {
      expect_named(field, dep.task.value());
    }
  }
  void expect_exists(const Field& field, const std::vector<PieceOffset>& offsets) const {
    for (const PieceOffset& begin : offsets) {
      expect_exists(field, begin.by);
    }
  }
  template <class Value>
  void expect_exists(const Field&, const Value&) const {}
  void expect_named(const Field& field, int32_t id) const {
    if (field.refers == Ref::none) return;
    const size_t count = num_named(field.refers);
    if (count == kAny || (id >= 0 && std::cmp_less(id, count))) return;
    bad(fmt::format("{} {} does not exist (there are {})", field.name, id, count));
  }

  // Requires the fields on which later code relies, checked or not: those without which others have
  // no meaning.
  void expect_whole(const Table& table) const;
  void expect_whole(const Buffer& buffer) const;
  void expect_whole(const Task& task) const;
  void expect_whole(const auto&) const {}
  void expect_table_of_class(TableId table) const;
  void expect_near(int64_t begin) const {
    if (is_offset_too_large(begin)) {
      bad(fmt::format("{} is no begin of anything; expected {} to {}", begin, -kMaxOffset,
                      kMaxOffset));
    }
  }

  void symbol(Words& words);
  void expect_role() const {
    if (program.roles.empty()) {
      bad("comes before any role");
    }
  }
  void task(Words& words, RankClass* cls);
  template <class Struct>
  void numbered(Words& words, std::string_view what, std::string_view prefix,
                std::vector<Struct>* list) {
    words.expect_number(what, prefix, list->size());
    Struct object;
    fields(words, &object);
    expect_whole(object);
    list->push_back(std::move(object));
  }
  RankClass* open_class() {
    if (program.classes.empty()) {
      bad("comes before any class");
    }
    role_ = program.classes.back().role;
    return &program.classes.back();
  }

  RoleId role_ = 0;  // that the current line is about
};

void Parser::expect_whole(const Table& table) const {
  int64_t coordinates = 1;
  for (const int32_t axis : table.axes) {
    coordinates *= program.roles[table.role].mesh.axes[static_cast<size_t>(axis)].size;
    if (coordinates > 1 << 20) {
      bad("axes has too many coordinates");
    }
  }
  if (std::cmp_not_equal(table.values.size(), coordinates)) {
    bad(fmt::format("values has {} numbers; expected {}: one for every coordinate on the axes",
                    table.values.size(), coordinates));
  }
  for (const int64_t value : table.values) {
    expect_near(value);
  }
}

void Parser::expect_table_of_class(TableId table) const {
  if (table == kNone || program.tables[table].role == role_) return;
  bad(fmt::format("table {} is of role {}; expected one of the class's role {}", table,
                  program.tables[table].role, role_));
}

void Parser::expect_whole(const Buffer& buffer) const {
  expect_table_of_class(buffer.by);
  expect_near(buffer.begin);
  for (const Slot& slot : buffer.slots) {
    expect_near(slot.begin);
  }
  if (buffer.kind != BufferKind::view) return;
  if (buffer.base == kNone) {
    bad("base is missing; expected the number of the buffer that the view is a part of");
  }
  const TensorType& base = program.classes.back().buffers[buffer.base].type;
  const size_t dims = std::min(buffer.type.dims.size(), base.dims.size());
  if (buffer.dim != kNone && (buffer.dim < 0 || std::cmp_greater_equal(buffer.dim, dims))) {
    bad(fmt::format("dim is {}; expected a dim of the view, {}, and of its base, {}", buffer.dim,
                    to_string(buffer.type), to_string(base)));
  }
}

void Parser::expect_whole(const Task& task) const {
  for (const auto* offsets : {&task.piece_offsets, &task.parts}) {
    for (const PieceOffset& begin : *offsets) {
      expect_table_of_class(begin.by);
      expect_near(begin.begin);
    }
  }
  expect_table_of_class(task.peer_by);
  const Kind& kind = program.kind(task);
  if (!is_communication(kind)) return;
  if (is_collective(kind)) {
    if (task.group == kNone) {
      bad(fmt::format("group is missing; expected the number of the group that meets in the {}",
                      kind.op));
    }
  } else if (task.peer_axis == kNone) {
    bad(fmt::format("axis is missing; expected the axis of the mesh that the {} goes along",
                    kind.op));
  }
}

void Parser::symbol(Words& words) {
  // A type is compared with the table as it is read: no symbol may come after one.
  if (!program.kinds.empty() || !program.classes.empty()) {
    bad("comes after a kind or a class");
  }
  words.expect_number("symbol", "", program.symbols.size());
  Symbol symbol;
  std::string_view text;
  if (words.find("name", &text)) {
    read(text, &symbol.name);
  }
  const auto number = [&](std::string_view name, int64_t* value) {
    if (words.find(name, &text)) {
      read(text, value);
    }
  };
  number("bound", &symbol.bound);
  symbol.expected = symbol.bound;
  number("expected", &symbol.expected);
  number("divisor", &symbol.divisor);
  words.expect_all_taken();
  if (const std::string why = graph::why_invalid(symbol); !why.empty()) {
    bad(fmt::format("'{}' {}", symbol.name, why));
  }
  program.symbols.push_back(std::move(symbol));
}

/// The line of a task names its op as well, for people.
void Parser::task(Words& words, RankClass* cls) {
  words.expect_number("task", "", cls->tasks.size());
  const std::string_view op = words.next();
  Task task;
  fields(words, &task);
  if (op != program.kind(task).op) {
    bad(fmt::format("kind {} is {}, the task says {}", task.kind, program.kind(task).op, op));
  }
  expect_whole(task);
  cls->tasks.push_back(std::move(task));
}

void Parser::line(std::string_view raw) {
  // The first word is the kind of line. Tables precede their references (kinds, groups, then
  // classes with their buffers and tasks), and numbers count up, so that ids are positions.
  for (const auto& [word, text] :
       {std::pair<std::string_view, std::string*>{"config ", &program.config},
        {"purpose ", &program.purpose}}) {
    if (raw.starts_with(word)) {
      *text = raw.substr(word.size());
      return;
    }
  }
  Words words(raw);
  const std::string_view what = words.next();
  if (what == "micro_batches") {
    program.num_micro_batches = count(words, what);
  } else if (what == "layers") {
    program.num_layers = count(words, what);
  } else if (what == "ranks_per_node") {
    program.ranks_per_node = count(words, what);
  } else if (what == "symbol") {
    symbol(words);
  } else if (what == "belongs") {
    numbered(words, what, "", &program.belongs);
  } else if (what == "role") {
    if (!program.classes.empty() || !program.groups.empty() || !program.tables.empty()) {
      bad("comes after a table, a group or a class");
    }
    numbered(words, what, "", &program.roles);
    int64_t ranks = 0;
    for (const Role& role : program.roles) {
      ranks += role.mesh.size();
    }
    if (ranks > 1 << 20) {
      bad(fmt::format("makes {} ranks", ranks));
    }
  } else if (what == "table") {
    expect_role();
    role_ = 0;
    numbered(words, what, "", &program.tables);
  } else if (what == "kind") {
    numbered(words, what, "k", &program.kinds);
    program.kinds.back().communication = comm::find(program.kinds.back().op);
  } else if (what == "group") {
    expect_role();
    role_ = 0;
    numbered(words, what, "", &program.groups);
  } else if (what == "class") {
    expect_role();
    role_ = 0;
    RankClass cls;
    fields(words, &cls);
    program.classes.push_back(std::move(cls));
  } else if (what == "buffer") {
    numbered(words, what, "", &open_class()->buffers);
  } else if (what == "task") {
    task(words, open_class());
  } else {
    bad(fmt::format("unknown line '{}'", what));
  }
}

}  // namespace

Program parse_program(std::string_view text, const std::string& where) {
  // Line by line between the header and `end`, without which the text counts as cut off. Whatever
  // is wrong in a line surfaces here, so that every error names the file and the line.
  Parser parser;
  size_t number = 0;
  bool header = false;
  bool ended = false;
  while (!text.empty()) {
    const size_t eol = std::min(text.find('\n'), text.size());
    const std::string_view raw = text.substr(0, eol);
    text.remove_prefix(std::min(eol + 1, text.size()));
    ++number;
    if (raw.empty() || raw[0] == '#') continue;
    std::string why;
    try {
      if (!header && raw != kHeader) {
        bad(fmt::format("got '{}'; expected '{}'{}", raw.substr(0, 40), kHeader,
                        raw.starts_with(kAnyHeader)
                            ? "; try to make it anew: hocket graph run.yaml --out FILE"
                            : ""));
      }
      if (ended) {
        bad(fmt::format("comes after '{}'", kEnd));
      }
      if (!header) {
        header = true;
      } else if (raw == kEnd) {
        ended = true;
      } else {
        parser.line(raw);
      }
      continue;
    } catch (const BadLine& bad_line) {
      why = bad_line.why;
    } catch (const Error& error) {
      why = error.what();
    }
    if (text.empty()) {
      why += fmt::format("; the text is cut off here: its last line is not '{}'", kEnd);
    }
    fail(where, "line {}: {}", number, why);
  }
  if (!header) fail(where, "the text is empty; expected '{}'", kHeader);
  if (!ended) {
    fail(where, "the text is cut off after line {}; expected '{}' as its last line", number, kEnd);
  }
  Program program = std::move(parser.program);
  if (const std::string wrong = program.bad_placement(); !wrong.empty()) {
    fail(where, "{}; expected every rank in exactly one class", wrong);
  }
  return program;
}

}  // namespace hocket::program
