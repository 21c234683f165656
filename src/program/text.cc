// SPDX-License-Identifier: Apache-2.0
// The text form of a program, printed: one line per kind, group, buffer and task, each with the
// fields that its struct names (program/field.h). src/program/parse.cc reads it back.
#include "program/text.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"

namespace hocket::program {
namespace {

/// Formatting of values, one overload per field type.
class Values {
 public:
  /// `mesh`: of the role that the thing is of.
  Values(fmt::memory_buffer& out, const Mesh& mesh) : out_(out), mesh_(mesh) {}

  template <class Enum>
  requires std::is_enum_v<Enum>
  void write(Enum value) { text(to_string(value)); }
  void write(bool value) { text(value ? "1" : "0"); }
  void write(int32_t value) { fmt::format_to(std::back_inserter(out_), "{}", value); }
  void write(int64_t value) { fmt::format_to(std::back_inserter(out_), "{}", value); }
  void write(double value) { fmt::format_to(std::back_inserter(out_), "{}", value); }
  template <class Of>
  void write(Id<Of> value) {
    fmt::format_to(std::back_inserter(out_), "{}", value);
  }
  void write(OutputSet value) { fmt::format_to(std::back_inserter(out_), "{}", value.bits()); }
  void write(const TensorType& value) { text(to_string(value)); }
  template <class Number>
  void write(const std::vector<Number>& numbers) {
    fmt::format_to(std::back_inserter(out_), "{}", fmt::join(numbers, ","));
  }
  // Writes a text in quotes, as the types below: it may hold blanks.
  void write(const std::string& value) { quoted(escape(value, "\"")); }
  void write(const Attrs& value) { quoted(to_string(value, '\'')); }
  void write(const Layout& value) { quoted(to_string(value, mesh_)); }
  void write(const Box& value) { quoted(to_string(value, mesh_)); }
  void write(const Mesh& value) { quoted(to_string(value)); }
  void write(const std::vector<PieceOffset>& offsets) {
    for (size_t i = 0; i < offsets.size(); ++i) {
      fmt::format_to(std::back_inserter(out_), "{}{}{}", i ? "," : "", offsets[i].letter,
                     offsets[i].begin);
      if (offsets[i].by != kNone) {
        fmt::format_to(std::back_inserter(out_), "@{}", offsets[i].by);
      }
    }
  }
  void write(const std::vector<PartDep>& deps) {
    for (size_t i = 0; i < deps.size(); ++i) {
      fmt::format_to(std::back_inserter(out_), "{}{}:{}.{}", i ? "," : "", deps[i].own,
                     deps[i].task, deps[i].part);
    }
  }
  /// "0:a:B;12:b:ep:S0": where it begins, its name, its layout.
  void write(const std::vector<Slot>& slots) {
    std::string list;
    for (const Slot& slot : slots) {
      list += fmt::format("{}{}:{}:{}", list.empty() ? "" : ";", slot.begin,
                          escape(slot.tensor, "\":;"), to_string(slot.layout, mesh_));
    }
    quoted(list);
  }
  void write(const std::vector<TensorType>& types) {
    std::string list;
    for (const TensorType& type : types) {
      list += (list.empty() ? "" : " ") + to_string(type);
    }
    quoted(list);
  }

  void write_word(const std::string& value) {
    text(value.empty() ? "\"\"" : escape(value, "\" ="));
  }
  template <class Value>
  void write_word(const Value& value) {
    write(value);
  }
  void text(std::string_view value) { out_.append(value.data(), value.data() + value.size()); }

 private:
  void quoted(std::string_view value) {
    out_.push_back('"');
    text(value);
    out_.push_back('"');
  }

  fmt::memory_buffer& out_;
  const Mesh& mesh_;
};

/// Appends the fields of one thing to a line: words, then name=value.
class Line {
 public:
  enum class Form {
    text,      ///< everything, to be read back
    identity,  ///< independent of numbering, see identity()
  };
  Line(fmt::memory_buffer& out, const Program& program, const Mesh& mesh, Form form)
      : out_(out), values_(out, mesh), program_(program), mesh_(mesh), form_(form) {}

  template <class Struct>
  void fields(const Struct& object) {
    static const Struct untouched{};
    bool before = false;  // the field before was written
    for_each_field<Struct>([&]<class Value>(const Field& field, Value Struct::*member) {
      if constexpr (!kIsList<Value> && !kIsCache<Value>) {
        const Value& value = object.*member;
        before = field.is_word || field.is_always || (field.is_follower && before) ||
                 !(value == untouched.*member);
        if (before && (form_ == Form::text || has_identity(field))) {
          one(field, value);
        }
      }
    });
  }

 private:
  static bool has_identity(const Field& field) {
    constexpr Ref kPlaces[] = {Ref::buffer, Ref::task, Ref::graph_node, Ref::graph_tensor};
    for (const Ref place : kPlaces) {
      if (field.refers == place) return false;
    }
    return !field.is_address;
  }

  template <class Value>
  void one(const Field& field, const Value& value) {
    const bool whole_kind = form_ == Form::identity && field.refers == Ref::kind;
    if (!whole_kind) {
      values_.text(" ");  // a kind's words bring their own
    }
    if (!field.is_word) {
      values_.text(field.name);
      values_.text("=");
    }
    if (form_ == Form::identity && field.refers != Ref::none) {
      spell_out(field.refers, value);
    } else if (field.is_word) {
      if (field.refers == Ref::kind) {
        values_.text("k");
      }
      values_.write_word(value);
    } else {
      values_.write(value);
    }
  }

  /// The referents of ids, instead of the ids.
  template <class Number>
  void spell_out(Ref what, const std::vector<Number>& ids) {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (i > 0) {
        values_.text(",");
      }
      spell_out(what, ids[i]);
    }
  }
  void spell_out(Ref what, const std::vector<PartDep>& deps) {
    for (const PartDep& dep : deps) {
      values_.text(fmt::format("{}.{}:", dep.own, dep.part));
      spell_out(what, dep.task);
    }
  }
  void spell_out(Ref what, const std::vector<PieceOffset>& offsets) {
    for (const PieceOffset& begin : offsets) {
      values_.text(fmt::format("{}{}", begin.letter, begin.begin));
      if (begin.by != kNone) {
        spell_out(what, begin.by);
      }
    }
  }
  template <class Of>
  void spell_out(Ref what, Id<Of> id) {
    spell_out(what, id.value());
  }
  void spell_out(Ref what, int32_t id) {
    switch (what) {
      case Ref::kind:
        return fields(program_.kinds[id]);
      case Ref::group: {
        const Group& group = program_.groups[id];
        values_.text("(");
        Line(out_, program_, program_.roles[group.role].mesh, form_).fields(group);
        return values_.text(" )");
      }
      case Ref::role:
        return values_.write_word(program_.roles[id].name);
      case Ref::axis:
        return values_.text(mesh_.axes[id].name);
      case Ref::table: {
        const Table& table = program_.tables[id];
        values_.text("(");
        Line(out_, program_, program_.roles[table.role].mesh, form_).fields(table);
        return values_.text(" )");
      }
      default:
        HOCKET_CHECK(false, "a field of a thing's identity is a place");
    }
  }
  template <class Value>
  void spell_out(Ref, const Value&) {
    HOCKET_CHECK(false, "a field that refers to something holds no number");
  }

  fmt::memory_buffer& out_;
  Values values_;
  const Program& program_;
  const Mesh& mesh_;
  const Form form_;
};

/// Lines of the text, in order.
class Printer {
 public:
  Printer(const Program& program, ClassId only_class) : program_(program), only_(only_class) {}

  std::string run() {
    line(kHeader);
    for_each_field<Program>(
        [&](const Field& field, auto member) { print(field, program_.*member); });
    line(kEnd);
    return fmt::to_string(out_);
  }

 private:
  void print(const Field& field, const std::string& value) {
    if (!value.empty()) {
      line("{} {}", field.name, value);
    }
  }
  void print(const Field& field, int32_t value) {
    if (field.is_always || value != 0) {
      line("{} {}", field.name, value);
    }
  }
  void print(const Field& field, const std::vector<Symbol>& symbols) {
    for (size_t i = 0; i < symbols.size(); ++i) {
      line("{} {} {}", field.name, i, to_string(symbols[i]));
    }
  }
  void print(const Field&, const KindIndex&) {}
  void print(const Field&, const std::vector<RankClass>& classes) {
    for (size_t cls = 0; cls < classes.size(); ++cls) {
      if (only_ == kNone || only_ == cls) {
        print(classes[cls]);
      }
    }
  }
  void print(const RankClass& cls) {
    mesh_ = &mesh_of(cls.role);
    item("class", cls);
    for_each_field<RankClass>([&]<class Value>(const Field& field, Value RankClass::*member) {
      if constexpr (kIsList<Value>) {
        print(field, cls.*member);
      }
    });
  }
  template <HasFields Struct>
  void print(const Field& field, const std::vector<Struct>& list) {
    for (size_t i = 0; i < list.size(); ++i) {
      if constexpr (std::is_same_v<Struct, Kind>) {
        item(fmt::format("{} k{}", field.name, i), list[i]);
      } else if constexpr (std::is_same_v<Struct, Task>) {
        item(fmt::format("{} {} {}", field.name, i, program_.kind(list[i]).op), list[i]);
      } else {
        item(fmt::format("{} {}", field.name, i), list[i]);
      }
    }
  }
  /// Mesh of a role, or an empty one: an edited program, whose roles may not exist, is printed
  /// before it is refused.
  const Mesh& mesh_of(RoleId role) const {
    static const Mesh nothing;
    return role >= 0 && role < program_.roles.size() ? program_.roles[role].mesh : nothing;
  }
  template <class Struct>
  void item(std::string_view head, const Struct& object) {
    out_.append(head.data(), head.data() + head.size());
    Line(out_, program_, *mesh_, Line::Form::text).fields(object);
    out_.push_back('\n');
  }
  template <class... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
    out_.push_back('\n');
  }
  void line(std::string_view text) { line("{}", text); }

  const Program& program_;
  const ClassId only_;
  const Mesh* mesh_ = &mesh_of(0);  // of the class that is printed
  fmt::memory_buffer out_;
};

template <class Struct>
std::string identity_of(const Program& program, RoleId role, const Struct& object) {
  fmt::memory_buffer out;
  Line(out, program, program.roles[role].mesh, Line::Form::identity).fields(object);
  return std::string(out.data() + 1, out.size() - 1);  // without the blank in front
}

}  // namespace

std::string print(const Program& program, ClassId only_class) {
  return Printer(program, only_class).run();
}

std::string identity(const Program& program, ClassId cls, const Task& task) {
  return identity_of(program, program.classes[cls].role, task);
}
std::string identity(const Program& program, ClassId cls, const Buffer& buffer) {
  return identity_of(program, program.classes[cls].role, buffer);
}
std::string identity(const Program& program, const Kind& kind) {
  return identity_of(program, 0, kind);
}

std::string to_dot(const Program& program, ClassId c) {
  // Three kinds of edges: reads from the writer (with the buffer), lane order (dotted), and
  // dependencies (red).
  const RankClass& cls = program.classes[c];
  std::string out = "digraph program {\n  rankdir=LR; node [shape=box, fontname=\"monospace\"];\n";
  std::vector<TaskId> writer(cls.buffers.size(), kNone);
  std::vector<TaskId> last(kNumLanes, kNone);
  for (size_t i = 0; i < cls.tasks.size(); ++i) {
    const Task& task = cls.tasks[i];
    const char* colour = task.lane == Lane::compute ? "#dbeafe" : "#fde68a";
    out += fmt::format("  t{} [label=\"{}\\n{}\", style=filled, fillcolor=\"{}\"];\n", i,
                       task_name(program, c, i), to_string(task.lane), colour);
    TaskId& prev = last[place_of(task.lane)];
    if (prev != kNone) {
      out += fmt::format("  t{} -> t{} [style=dotted];\n", prev, i);
    }
    prev = i;
    for (BufferId input : task.in) {
      if (const TaskId from = writer[input]; from != kNone) {
        out += fmt::format("  t{} -> t{} [label=\"b{}\"];\n", from, i, input);
      }
    }
    for (TaskId dep : task.deps) {
      out += fmt::format("  t{} -> t{} [color=red];\n", dep, i);
    }
    for (BufferId output : task.out) {
      writer[output] = i;
    }
  }
  return out + "}\n";
}

}  // namespace hocket::program
