// SPDX-License-Identifier: Apache-2.0
// Texts that were edited by hand, and passes that are commands.
#include "passes/finish.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "ops/build.h"
#include "parallel/lowering/lower.h"
#include "passes/pass.h"
#include "program/finalize.h"
#include "run/compile.h"
#include "tests/check/check_util.h"

namespace hocket::passes {
namespace {

program::Program dense_program() {
  parallel::Plan plan;
  plan.pp = 2;
  plan.dp = 2;
  plan.num_micro_batches = 2;
  // Without passes every kind has a task. Its group determines the types of a collective.
  return check::test::make_case(check::test::dense(2, false), plan, 8, 1 << 20,
                                check::test::Purpose::train, {{}, {}})
      .program;
}

/// The text without every ` field=value`, where a value that begins with a quote ends with one.
std::string without_field(std::string text, const std::string& field) {
  const std::string begin = " " + field;
  for (size_t at = 0; (at = text.find(begin, at)) != text.npos;) {
    const bool quoted = field.back() == '"';
    const size_t end = quoted ? text.find('"', at + begin.size()) + 1
                              : text.find_first_of(" \n", at + begin.size());
    text.erase(at, end - at);
  }
  return text;
}

TEST(Finish, RefusesOtherBytesOfAKindWithoutFlops) {
  program::Program edited = program::parse_program(program::print(dense_program()));
  const auto kind = std::find_if(edited.kinds.begin(), edited.kinds.end(), [](const auto& one) {
    return !program::is_communication(one) && one.flops == 0 && one.bytes > 0;
  });
  ASSERT_NE(kind, edited.kinds.end());
  kind->bytes = 12345;
  try {
    finish(edited, "text");
    FAIL() << kind->op;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("0 FLOPs and 12345 bytes"), std::string::npos)
        << error.what();
  }
}

TEST(Finish, DerivesEveryOptionalField) {
  // Drops every optional part of a text without routed rows.
  const program::Program good = dense_program();
  std::string text = program::print(good);
  for (const char* field : {"out=\"", "flops=", "bytes=", "workspace=", "at=", "ws=", "arena="}) {
    text = without_field(text, field);
  }
  // Messages that come in have no types to follow from, nor the zeros of an attribute.
  program::Program edited = program::parse_program(text);
  for (size_t kind = 0; kind < edited.kinds.size(); ++kind) {
    if (edited.kinds[kind].op == "recv") {
      edited.kinds[kind].out = good.kinds[kind].out;
    }
  }
  finish(edited, "text");
  EXPECT_EQ(program::print(edited), program::print(good));
}

TEST(Finish, CostsUseTheExpectedValueOfSymbols) {
  graph::Graph graph;
  const graph::Dim tokens = graph.symbol({"tokens", 64, 8, 4});
  const graph::TensorId x = graph.input("x", {graph::DType::f32, {tokens, 16}});
  const graph::TensorId w = graph.param("w", {graph::DType::f32, {24, 16}}, 0, {});
  graph.outputs = ops::apply(graph, "linear", {}, {x, w}, "y", 0);
  parallel::Plan plan;
  plan.dp = 2;
  program::Program good = parallel::lower(graph, plan);
  program::finalize(good);
  program::Program edited = good;
  for (program::Kind& kind : edited.kinds) {
    EXPECT_EQ(kind.flops, 2.0 * 4 * 16 * 24);
    kind.out.clear();
    kind.flops = 0;
    kind.bytes = 0;
  }
  edited.classes[0].arena_bytes = 0;
  finish(edited, "text");
  EXPECT_EQ(program::print(edited), program::print(good));
}

TEST(Finish, RefusesAProgramThatReadsBeforeItWrites) {
  program::Program program = dense_program();
  auto& tasks = program.classes[0].tasks;
  for (program::Task& task : tasks) {
    task.deps.clear();
  }
  std::rotate(tasks.begin(), tasks.begin() + 1, tasks.end());
  try {
    finish(program, "edited.txt");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("[edited.txt] can't be finished"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("read-before-write"), std::string::npos);
  }
}

TEST(CommandPasses, RunOnTheTextOfTheProgram) {
  program::Program program = dense_program();
  const program::Program before = program;
  PassRunner({"exec:cat"}, {}, PassOptions()).run(program);
  EXPECT_EQ(program, before);
  const auto refused = [&](const char* pass) -> std::string {
    try {
      PassRunner({pass}, {}, PassOptions()).run(program);
    } catch (const Error& error) {
      EXPECT_EQ(program, before) << "lost";
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refused("exec:false").find("exec:false"), std::string::npos);
  EXPECT_NE(refused("exec:echo odd").find("output of exec:echo odd"), std::string::npos);
  EXPECT_NE(refused("exec:sed 's/pp:2/pp:1/'").find("output of"), std::string::npos);
  EXPECT_NE(refused("exec:sed 's/role 0 all/role 0 some/'").find("other roles"), std::string::npos);
  EXPECT_THROW(PassRunner({"bucketz"}, {}, PassOptions()), Error);
}

// A command that drops a task is refused in the words of the check, before memory is planned.
TEST(CommandPasses, LeaveNoBufferUnwritten) {
  const program::Program before = dense_program();
  int tried = 0;
  for (const char* op : {"add", "sumsq", "all_reduce", "embedding"}) {
    program::Program broken = before;
    program::RankClass& cls = broken.classes[0];
    for (program::Task& task : cls.tasks) {
      task.deps.clear();
    }
    const auto dropped =
        std::find_if(cls.tasks.begin(), cls.tasks.end(),
                     [&](const program::Task& task) { return before.kind(task).op == op; });
    ASSERT_NE(dropped, cls.tasks.end()) << op;
    // The content of a named buffer exists without the task.
    const bool named = cls.buffers[dropped->out[0]].kind != program::BufferKind::step;
    const bool in_place =
        std::find(dropped->in.begin(), dropped->in.end(), dropped->out[0]) != dropped->in.end();
    if (named || in_place || !dropped->accumulate.empty()) continue;
    ++tried;
    cls.tasks.erase(dropped);
    const std::string file = testing::TempDir() + "/broken.txt";
    write_file_atomic(file, program::print(broken));
    program::Program program = before;
    try {
      PassRunner({"exec:cat > /dev/null; cat " + file}, {}, PassOptions()).run(program);
      ADD_FAILURE() << "accepted without " << op;
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_EQ(error.exit_code(), 2) << text;
      EXPECT_NE(text.find("output of exec:"), std::string::npos) << text;
      EXPECT_NE(text.find("read-before-write"), std::string::npos) << text;
    }
  }
  EXPECT_GE(tried, 2);
}

}  // namespace
}  // namespace hocket::passes
