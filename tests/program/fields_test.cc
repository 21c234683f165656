// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Every field of every struct of a program: changed alone, it is printed, read back, distinguished
// by the comparison, and part of the hash unless it is a label.
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "base/error.h"
#include "cli/diff.h"
#include "program/program.h"
#include "tests/check/check_util.h"

namespace hocket::program {
namespace {

Program pipeline_with_experts() {
  parallel::Plan plan;
  plan.pp = 2;
  plan.dp = 4;
  plan.ep = 2;
  plan.num_micro_batches = 2;
  Program p = check::test::make_case(check::test::moe(2), plan).program;
  p.config = "{\"model\":1}";
  // A second role, with nothing to do.
  p.roles.push_back({"idle", {{{"x", 2}, {"y", 2}, {"z", 1}}}});
  RankClass idle;
  idle.name = "idle";
  idle.role = 1;
  p.classes.push_back(idle);
  return p;
}

/// Another value of a field, legal for the text form. References name something that exists.
class Changer {
 public:
  explicit Changer(const Program& p) : program_(p) {}

  void change(const Field&, bool* v) const { *v = !*v; }
  void change(const Field&, double* v) const { *v = *v * 3 + 0.1; }
  void change(const Field&, int64_t* v) const { *v += 64; }
  void change(const Field& field, int32_t* v) const {
    const size_t n = count(field.refers);
    *v = n == 0 ? *v + 1 : static_cast<int32_t>((static_cast<size_t>(*v) + 1) % n);
  }
  template <class Of>
  void change(const Field& field, Id<Of>* v) const {
    int32_t number = v->value();
    change(field, &number);
    *v = number;
  }
  void change(const Field&, OutputSet* v) const { v->flip(3); }
  void change(const Field&, Lane* v) const { *v = *v == Lane::host ? Lane::d2h : Lane::host; }
  void change(const Field&, Phase* v) const {
    *v = *v == Phase::grad ? Phase::optimizer : Phase::grad;
  }
  void change(const Field&, BufferKind* v) const {
    *v = *v == BufferKind::output ? BufferKind::input : BufferKind::output;
  }
  void change(const Field&, Layout* v) const { v->set(1, graph::Placement::split(3)); }
  void change(const Field&, Attrs* v) const { v->set("odd", std::string("it's \"odd\"\\\n")); }
  void change(const Field&, TensorType* v) const { v->dims.push_back(7); }
  void change(const Field&, std::vector<TensorType>* v) const { v->push_back({{}, {3}, 0}); }
  void change(const Field&, Space* v) const {
    *v = *v == Space::host ? Space::device : Space::host;
  }
  void change(const Field&, std::vector<Symbol>* v) const { v->push_back({"it's", 64, 32, 8}); }
  void change(const Field&, std::vector<PieceOffset>* v) const { v->push_back({'x', -3, 0}); }
  void change(const Field&, std::vector<PartDep>* v) const { v->push_back({1, 0, 2}); }
  void change(const Field&, std::vector<Slot>* v) const {
    Layout layout;
    change(Field("layout"), &layout);
    v->push_back({"it's \"a:b;c\"\\", layout, 64});
    v->push_back({"d", {}, 128});
  }
  template <class Number>
  void change(const Field&, std::vector<Number>* v) const {
    v->push_back(0);
  }
  void change(const Field& field, std::string* v) const {
    // A kind needs the name of an op; every other field may hold any text.
    *v = std::string_view(field.name) == "op" ? "copy" : *v + " 'a \"b=c\\";
  }
  void change(const Field&, Mesh* v) const { v->axes[1].size *= 2; }
  void change(const Field&, Box* v) const { (*v)[1] = {1, 1}; }

 private:
  size_t count(Ref what) const {
    switch (what) {
      case Ref::kind:
        return program_.kinds.size();
      case Ref::group:
        return program_.groups.size();
      case Ref::role:
        return program_.roles.size();
      case Ref::axis:
        return program_.roles[0].mesh.axes.size();
      case Ref::table:
        return program_.tables.size();
      default:
        return 0;
    }
  }
  const Program& program_;
};

struct Change {
  std::string name;  ///< "task.lane"
  Field field;
  bool in_step_buffer;
  Program program;
};

/// The program with each field of one object changed, one at a time.
template <class Struct>
void each_change(const std::string& what, const Program& good,
                 const std::function<Struct&(Program&)>& object,
                 const std::function<void(const Change&)>& visit) {
  for_each_field<Struct>([&]<class Value>(const Field& field, Value Struct::*member) {
    if constexpr (!kIsList<Value> && !kIsCache<Value>) {
      Change change{what + "." + field.name, field, false, good};
      Struct& changed = object(change.program);
      if constexpr (std::is_same_v<Struct, Buffer>) {
        change.in_step_buffer = changed.kind == BufferKind::step;
      }
      Changer(good).change(field, &(changed.*member));
      visit(change);
    }
  });
}

void every_change(const Program& good, const std::function<void(const Change&)>& visit) {
  const auto buffer = [&](BufferKind kind) {
    return [kind](Program& p) -> Buffer& {
      // The last one: a base comes before its views.
      for (size_t i = p.classes[1].buffers.size(); i-- > 0;) {
        if (p.classes[1].buffers[i].kind == kind) return p.classes[1].buffers[i];
      }
      throw std::logic_error("no such buffer");
    };
  };
  const auto task = [](const char* op) {
    return [op](Program& p) -> Task& {
      for (Task& t : p.classes[1].tasks) {
        if (p.kind(t).op == op) return t;
      }
      throw std::logic_error("no such task");
    };
  };
  each_change<Program>(
      "program", good, [](Program& p) -> Program& { return p; }, visit);
  each_change<Kind>(
      "kind", good, [](Program& p) -> Kind& { return p.kinds[2]; }, visit);
  each_change<Group>(
      "group", good, [](Program& p) -> Group& { return p.groups[0]; }, visit);
  each_change<Role>(
      "role", good, [](Program& p) -> Role& { return p.roles[0]; }, visit);
  each_change<Table>(
      "table", good, [](Program& p) -> Table& { return p.tables.at(0); }, visit);
  each_change<RankClass>(
      "class", good, [](Program& p) -> RankClass& { return p.classes[1]; }, visit);
  each_change<Buffer>("step buffer", good, buffer(BufferKind::step), visit);
  each_change<Buffer>("parameter", good, buffer(BufferKind::persistent), visit);
  for (const char* op : {"linear", "all_reduce", "recv"}) {
    each_change<Task>(std::string("task ") + op, good, task(op), visit);
  }
}

/// Some fields cannot change alone: the ranks of one class, or the coordinates of a table without
/// its numbers or its owner. Such a text is refused.
bool needs_other_changes(const Change& change) {
  if (change.name == "class.role" || change.name == "class.box") return true;
  const Program& program = change.program;
  const auto of_role = [&](TableId table, RoleId role) {
    return table == kNone || program.tables[table].role == role;
  };
  for (const Table& table : program.tables) {
    int64_t coordinates = 1;
    for (const int32_t axis : table.axes) {
      coordinates *= program.roles[table.role].mesh.axes[axis].size;
    }
    if (std::ssize(table.values) != coordinates) return true;
  }
  for (const RankClass& cls : program.classes) {
    for (const Buffer& buffer : cls.buffers) {
      if (!of_role(buffer.by, cls.role)) return true;
    }
    for (const Task& task : cls.tasks) {
      for (const auto* offsets : {&task.piece_offsets, &task.parts}) {
        for (const PieceOffset& begin : *offsets) {
          if (!of_role(begin.by, cls.role)) return true;
        }
      }
    }
  }
  return false;
}

TEST(ProgramFields, ChangedAloneTheyPrintAndReadBack) {
  const Program good = pipeline_with_experts();
  const std::string text = print(good);
  int changes = 0;
  every_change(good, [&](const Change& c) {
    ++changes;
    EXPECT_FALSE(c.program == good) << c.name;
    const std::string changed = print(c.program);
    EXPECT_NE(changed, text) << c.name;
    if (needs_other_changes(c)) {
      EXPECT_THROW(parse_program(changed), Error) << c.name;
      return;
    }
    const Program back = parse_program(changed);
    EXPECT_TRUE(back == c.program) << c.name;
    EXPECT_EQ(print(back), changed) << c.name;
  });
  EXPECT_GT(changes, 70);
}

TEST(ProgramFields, AllButLabelsAreInTheHash) {
  const Program good = pipeline_with_experts();
  const Hash128 hash = program_hash(good);
  EXPECT_EQ(program_hash(parse_program(print(good))), hash);
  std::set<std::string> labels;
  every_change(good, [&](const Change& c) {
    if (program_hash(c.program) == hash) {
      labels.insert(c.name);
    }
  });
  // A field joins this list by being marked as a label, never by being forgotten.
  const std::set<std::string> expected = {
      "program.config", "program.purpose",    "program.layers",     "role.name",
      "class.name",     "step buffer.tensor", "step buffer.layout", "parameter.tensor"};
  std::set<std::string> all = expected;
  for (const char* op : {"linear", "all_reduce", "recv"}) {
    for (const char* field : {"phase", "mb", "stage", "layer", "recompute", "node"}) {
      all.insert(std::string("task ") + op + "." + field);
    }
  }
  EXPECT_EQ(labels, all);
}

TEST(ProgramFields, ListsAreInTheHash) {
  const Program good = pipeline_with_experts();
  const auto differs = [&](const char* what, const std::function<void(Program&)>& change) {
    Program p = good;
    change(p);
    EXPECT_NE(program_hash(p), program_hash(good)) << what;
    EXPECT_FALSE(p == good) << what;
  };
  differs("kinds", [](Program& p) { p.kinds.push_back(p.kinds[0]); });
  differs("groups", [](Program& p) { p.groups.push_back(p.groups[0]); });
  differs("classes", [](Program& p) { p.classes.pop_back(); });
  differs("tasks", [](Program& p) { p.classes[0].tasks.pop_back(); });
  differs("buffers", [](Program& p) { p.classes[0].buffers.push_back({}); });
  differs("order", [](Program& p) { std::swap(p.classes[0].tasks[3], p.classes[0].tasks[4]); });
}

TEST(ProgramFields, TheDiffShowsEveryChangeButPlacesAndLabels) {
  const Program good = pipeline_with_experts();
  const std::string text = print(good);
  every_change(good, [&](const Change& c) {
    if (needs_other_changes(c)) return;
    const std::string diff = cli::diff_texts("a", text, "b", print(c.program), 20);
    const Field& f = c.field;
    const bool place = f.is_address ||
                       (f.refers == Ref::buffer && c.name.find("base") == c.name.npos) ||
                       f.refers == Ref::graph_node || f.refers == Ref::graph_tensor;
    // Dependencies are counted; the names of classes, the configuration and the purpose are not
    // compared.
    const bool unseen = place || c.name == "class.name" || c.name == "program.config" ||
                        c.name == "program.purpose";
    const std::string same = "  no difference\n";
    size_t alike = 0;
    for (size_t at = diff.find(same); at != diff.npos; at = diff.find(same, at + 1)) {
      ++alike;
    }
    const bool nothing = alike == good.classes.size() && diff.find("\n- ") == diff.npos;
    EXPECT_EQ(nothing, unseen) << c.name << "\n" << diff;
  });
}

TEST(ProgramFields, KindsThatDifferInAnyFieldAreInternedApart) {
  const Program good = pipeline_with_experts();
  each_change<Kind>(
      "kind", good, [](Program& p) -> Kind& { return p.kinds[2]; },
      [&](const Change& c) {
        Program p = good;
        EXPECT_EQ(p.intern(Kind(good.kinds[2])), 2) << c.name;
        EXPECT_EQ(p.intern(Kind(c.program.kinds[2])), good.kinds.size()) << c.name;
      });
}

TEST(ProgramFields, UnknownAndDoubledWordsAreRefused) {
  const std::string text = print(pipeline_with_experts());
  const auto error_with = [&](const std::string& before, const std::string& word) {
    std::string changed = text;
    changed.insert(changed.find(before), word);
    try {
      parse_program(changed);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_NE(error_with(" layer=", " laier=3").find("'laier=3' is unknown here"), std::string::npos);
  EXPECT_NE(error_with(" layer=", " layer=3").find("unknown here, or comes twice"),
            std::string::npos);
  EXPECT_NE(error_with(" flops=", " cycles=3").find("'cycles=3' is unknown here"),
            std::string::npos);
  EXPECT_NE(error_with("\ngroup 0", " shape=7").find("'shape=7' is unknown here"),
            std::string::npos);
  EXPECT_NE(error_with("\ngroup 0", "\nmicro_batches 2 x").find("'x' is unknown here"),
            std::string::npos);
}

TEST(ProgramFields, AttributesHoldAnyText) {
  Program p = pipeline_with_experts();
  for (const char* value :
       {"it's", "\"quoted\"", "back\\slash", "two\nlines", "a b=c", "", "'", "\""}) {
    p.kinds[2].attrs.set("note", std::string(value));
    const Program back = parse_program(print(p));
    EXPECT_EQ(back.kinds[2].attrs.s("note"), value);
    EXPECT_TRUE(back == p);
  }
}

}  // namespace
}  // namespace hocket::program
