// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// The text form of programs: lowered programs of random plans print and parse back to the same
// thing; spoilt text throws Error or is again a program that prints and parses.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/rng.h"
#include "program/program.h"
#include "tests/plans/plan_util.h"

namespace hocket::program {
namespace {

engine::Compiled compiled(uint64_t seed, const std::string& name = "train") {
  const test::Case c = test::random_case(seed, 8, "f32");
  const engine::Run run = engine::parse_run(c.text, c.name, {});
  return engine::compile(name == "generate"
                             ? engine::generation(run, 3, {.longest = 16, .pages = 1})
                             : engine::spec_named(run, name, c.name));
}

TEST(ProgramText, RandomPlansPrintAndParseToTheSame) {
  for (uint64_t seed = 1; seed <= test::fewer(40); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const Program p = compiled(seed).program;
    const std::string text = print(p);
    const Program q = parse_program(text);
    EXPECT_TRUE(p == q);
    EXPECT_EQ(program_hash(p), program_hash(q));
    ASSERT_EQ(print(q), text);
  }
}

TEST(ProgramText, EveryPurposePrintsAndParsesToTheSame) {
  for (const char* name : {"train", "evaluate", "gradients", "logits", "generate"}) {
    for (uint64_t seed : {3, 4}) {
      SCOPED_TRACE(name);
      const Program p = compiled(seed, name).program;
      EXPECT_TRUE(p == parse_program(print(p)));
    }
  }
}

TEST(ProgramText, SkipsCommentsAndEmptyLines) {
  const std::string text = print(compiled(2).program);
  std::string spaced = "# a comment\n\n";
  for (char c : text) {
    spaced += c == '\n' ? std::string("\n\n# more\n") : std::string(1, c);
  }
  EXPECT_EQ(print(parse_program(spaced)), text);
}

TEST(ProgramText, PrintsASingleClassAlsoAsDot) {
  for (uint64_t seed = 1;; ++seed) {
    const Program p = compiled(seed).program;
    if (p.classes.size() < 2 || p.classes[0].name == p.classes[1].name) continue;
    const std::string one = print(p, 1);
    EXPECT_EQ(one.find("class " + p.classes[0].name + " "), one.npos);
    EXPECT_NE(one.find("class " + p.classes[1].name + " "), one.npos);
    const std::string dot = to_dot(p, 1);
    EXPECT_EQ(dot.rfind("digraph", 0), 0u);
    for (size_t t = 0; t < p.classes[1].tasks.size(); ++t) {
      ASSERT_NE(dot.find(task_name(p, 1, t) + "\\n"), dot.npos);
    }
    break;
  }
}

TEST(TaskName, NamesTheLayerMicroBatchAndPhase) {
  Program p;
  p.num_layers = 4;
  p.classes.emplace_back().name = "stage0";
  const auto named = [&](const char* op, int32_t layer, Phase phase) {
    Kind kind;
    kind.op = op;
    Task task;
    task.kind = p.intern(kind);
    task.layer = layer;
    task.micro_batch = 2;
    task.phase = phase;
    p.classes[0].tasks = {task};
    return task_name(p, 0, 0);
  };
  EXPECT_EQ(named("linear", 3, Phase::forward), "linear L3 mb2 forward (stage0 task 0)");
  EXPECT_EQ(named("rms_norm", 4, Phase::forward), "rms_norm head mb2 forward (stage0 task 0)");
  EXPECT_EQ(named("send", -1, Phase::backward), "send embedding mb2 backward (stage0 task 0)");
  EXPECT_EQ(named("embedding_dw", -1, Phase::backward),
            "embedding_dw mb2 backward (stage0 task 0)");
  EXPECT_EQ(named("adamw", 3, Phase::optimizer), "adamw mb2 optimizer (stage0 task 0)");
  EXPECT_EQ(graph::layer_name(graph::kNoLayer, 4), "");
  p.num_layers = 0;  // not known
  EXPECT_EQ(named("linear", 4, Phase::forward), "linear L4 mb2 forward (stage0 task 0)");
  EXPECT_EQ(named("linear", kNone, Phase::forward), "linear mb2 forward (stage0 task 0)");
}

/// The error of parsing `text`; "" if it parses.
std::string error_of(const std::string& text) {
  try {
    parse_program(text);
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 2);
    return e.what();
  }
  return "";
}

/// `text` with the first line that begins with `line` changed.
std::string with(const std::string& text, const std::string& line, const std::string& from,
                 const std::string& to) {
  const size_t at = text.find("\n" + line) + 1, end = text.find('\n', at);
  std::string changed = text.substr(at, end - at);
  const size_t where = changed.find(from);
  EXPECT_NE(where, changed.npos) << changed << " has no " << from;
  changed.replace(where, from.size(), to);
  return text.substr(0, at) + changed + text.substr(end);
}

TEST(ProgramText, NamesTheLineAndTheFault) {
  const std::string text = print(compiled(1).program);
  auto expect = [&](const std::string& spoilt, const std::string& part) {
    const std::string e = error_of(spoilt);
    EXPECT_NE(e.find(part), e.npos) << "got '" << e << "', expected '" << part << "'";
    EXPECT_NE(e.find("[program text]"), e.npos) << e;
  };
  expect("", "empty");
  expect("hocket-program 1\n", "line 1: got 'hocket-program 1'; expected 'hocket-program 2'; try");
  expect("hocket-program 3\n", "line 1: got 'hocket-program 3'");
  expect(with(text, "task 1 ", "k", "x"), "");
  expect(with(text, "task 0 ", "task 0", "task 1"), "task 1 stands where 0 is expected");
  expect(with(text, "buffer 0 ", "buffer 0", "buffer 3"), "buffer 3 stands where 0 is expected");
  expect(with(text, "kind k0 ", "k0", "k7"), "kind 7 stands where 0 is expected");
  expect(with(text, "task 0 ", " layer=", " group=-4 layer="), "group -4 does not exist");
  expect(with(text, "task 0 ", " layer=", " axis=-3 layer="), "axis -3 does not exist");
  expect(with(text, "task 0 ", " layer=", " layer=z"), "is not a number");
  expect(with(text, "micro_batches", "micro_batches ", "micro_batches -"), "micro_batches");
  expect(with(text, "layers", "layers ", "layers -"), "layers is -");
  // Numbers that do not fit are not cut down to ones that do.
  expect(with(text, "task 0 ", " out=", " out=4294967296,"), "out of range");
  expect(with(text, "end", "end", "nonsense 1"), "unknown line 'nonsense'");
  expect(text + "nonsense 1\n", "comes after 'end'");
  expect(with(text, "buffer 0 ", "buffer 0 ", "buffer 0 x"), "line ");
  const std::string three = "hocket-program 2\nrole 0 all mesh=\"pp:3\"\n";
  expect(three + "task 0 add compute forward k0\n", "before any class");
  expect("hocket-program 2\nclass all arena=0\nend\n", "before any role");
  expect(three + "end\n", "rank 0 is in no class");
  expect(three + "class first box=\"pp:0-1\" arena=0\nend\n", "rank 2 is in no class");
  expect(three + "class first arena=0\nclass second box=\"pp:2\" arena=0\nend\n",
         "rank 2 is in the classes 0 and 1");
  expect(three + "class first box=\"pp:2-3\" arena=0\nend\n", "coordinates 2 to 3 of axis 0");
  expect(three + "class first box=\"pp:2-1\" arena=0\nend\n", "got 'pp:2-1'");
  expect(three + "class first box=\"dp:0\" arena=0\nend\n", "got 'dp:0'");
  expect(three + "class first role=1 arena=0\nend\n", "role 1 does not exist");
  expect(three + "group 0 axes=0 along=1 members=0\nend\n", "along 1 does not exist");
  expect("hocket-program 2\nrole 0 all mesh=\"pp:0\"\nend\n", "got 'pp:0'; expected axis:size");
  expect("hocket-program 2\nrole 0 all mesh=\"pp:2 pp:2\"\nend\n", "axis pp comes twice");
  expect("hocket-program 2\nrole 0 all mesh=\"pp:1048576 dp:2\"\nend\n", "too large");
}

TEST(ProgramText, ReportsThatATextIsCutOff) {
  const std::string text = print(compiled(1).program);
  const size_t step = test::is_long() ? 97 : 487;
  for (size_t length = 40; length + 4 < text.size(); length += step) {
    EXPECT_NE(error_of(text.substr(0, length)).find("cut off"), std::string::npos) << length;
  }
}

TEST(ProgramText, SpoiltTextNeverCrashes) {
  std::vector<std::string> texts;
  for (uint64_t seed : {1, 5, 9, 12}) {
    texts.push_back(print(compiled(seed).program));
  }
  Rng rng(11);
  const std::string alphabet = "0123456789-=,.:@[]{}\"' \nabkntSPB#";
  int refused = 0, accepted = 0;
  for (int i = 0; i < 1500; ++i) {
    std::string text = texts[rng.below(texts.size())];
    if (text.find("config ") != text.npos) {
      text = text.substr(text.find("micro_batches"));
    }
    text = "hocket-program 2\n" + text;
    for (uint64_t edits = 1 + rng.below(3); edits > 0; --edits) {
      size_t at = rng.below(text.size());
      const size_t begin = text.rfind('\n', at), end = text.find('\n', at);
      switch (rng.below(7)) {
        case 0:
          text.erase(at, 1 + rng.below(4));
          break;
        case 1:
          text.insert(at, 1, alphabet[rng.below(alphabet.size())]);
          break;
        case 2:
          text[at] = alphabet[rng.below(alphabet.size())];
          break;
        case 3:
          text.resize(at);
          break;
        case 4:  // a line is lost, or comes twice
        case 5:
          if (begin == text.npos || end == text.npos) break;
          if (rng.below(2)) {
            text.erase(begin, end - begin);
          } else {
            text.insert(begin, text.substr(begin, end - begin));
          }
          break;
        default:  // a number becomes another
          at = text.find_first_of("0123456789", at);
          if (at == text.npos) break;
          const char* numbers[] = {"-1",
                                   "-2",
                                   "0",
                                   "1",
                                   "7",
                                   "63",
                                   "99999",
                                   "4294967296",
                                   "9223372036854775807",
                                   "-9223372036854775808",
                                   "1e9",
                                   "nan"};
          const size_t last = std::min(text.find_first_not_of("0123456789", at), text.size());
          text.replace(at, last - at, numbers[rng.below(std::size(numbers))]);
      }
      if (text.empty()) {
        text = " ";
      }
    }
    Program p;
    try {
      p = parse_program(text);
    } catch (const Error& e) {
      ++refused;
      ASSERT_EQ(e.exit_code(), 2);
      continue;
    }
    ++accepted;
    const std::string printed = print(p);
    ASSERT_EQ(print(parse_program(printed)), printed) << "spoilt text " << i;
    for (size_t c = 0; c < p.classes.size(); ++c) {
      to_dot(p, static_cast<int32_t>(c));
    }
  }
  std::printf("%d refused, %d accepted\n", refused, accepted);
  EXPECT_GT(refused, 700);
}

TEST(ProgramText, NamesOfEnumsParse) {
  for (int l = 0; l < kNumLanes; ++l) {
    const auto lane = static_cast<Lane>(l);
    EXPECT_EQ(parse_lane(to_string(lane)), lane);
  }
  for (Phase p : {Phase::forward, Phase::backward, Phase::grad, Phase::optimizer}) {
    EXPECT_EQ(parse_phase(to_string(p)), p);
  }
  EXPECT_THROW(parse_lane("warp"), Error);
  EXPECT_THROW(parse_phase(""), Error);
}

TEST(ProgramGroups, HaveTheMembersAndPeersOfTheirAxes) {
  Program p;
  p.roles = {{"all", {{{"pp", 3}, {"edp", 2}, {"ep", 2}}}}};
  p.classes.resize(3);
  for (int32_t stage = 0; stage < 3; ++stage) {
    p.classes[stage].box = Box::at(0, stage);
  }
  EXPECT_EQ(p.class_of(0), 0);
  EXPECT_EQ(p.class_of(11), 2);
  EXPECT_EQ(p.ranks_of(1), (std::vector<int32_t>{4, 5, 6, 7}));
  EXPECT_EQ(p.members(program::group_over({2}), 6), (std::vector<int32_t>{6, 7}));
  EXPECT_EQ(p.members(program::group_over({1, 2}), 6), (std::vector<int32_t>{4, 5, 6, 7}));
  EXPECT_EQ(p.members(program::group_over({0}), 6), (std::vector<int32_t>{2, 6, 10}));
  EXPECT_EQ(p.members(Group{0, {0}, 0, {0, 2}}, 2), (std::vector<int32_t>{2, 10}));
  // Every member sees the same group.
  for (const Group& g : {group_over({1}), group_over({0, 2}), group_over({0, 1, 2})}) {
    for (int32_t r = 0; r < 12; ++r) {
      for (int32_t m : p.members(g, r)) {
        EXPECT_EQ(p.members(g, m), p.members(g, r));
      }
    }
  }
  Task send;
  send.peer_axis = 0, send.peer = 1;
  EXPECT_EQ(p.peer_of(send.peer_map(), 2), 6);
  EXPECT_EQ(p.intern(group_over({1})), 0);
  EXPECT_EQ(p.intern(group_over({2})), 1);
  EXPECT_EQ(p.intern(group_over({1})), 0);
}

}  // namespace
}  // namespace hocket::program
