// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Texts of programs with one field of a line dropped or emptied. The reader names the fault, and no
// later stage assumes the missing field.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "check/check.h"
#include "passes/finish.h"
#include "tests/check/check_util.h"

namespace hocket::passes {
namespace {

check::test::Case dense_case() {
  parallel::Plan plan;
  plan.pp = 2;
  plan.dp = 2;
  plan.num_micro_batches = 2;
  return check::test::make_case(check::test::dense(1, false), plan);
}

/// Two roles, tables, views, a bucket, parts, begins: features that no single plan is lowered to.
constexpr const char* kByHand = R"(hocket-program 2
micro_batches 1
role 0 most mesh="tp:2"
role 1 one mesh="ep:1"
symbol 0 bound=64 expected=1 name="n"
table 0 axes=0 values=0,4
table 1 axes=0 values=1,-1
kind k0 all_gather attrs="{dim=0}" in="f32[4,4]"
kind k1 linear attrs="" in="f32[8,4] f32[6,4]"
kind k2 copy attrs="" in="f32[4,4]"
kind k3 send attrs="" in="f32[8,6]"
kind k4 recv attrs="" in="" out="f32[8,6]"
kind k5 transfer attrs="" in="f32[8,6]"
kind k6 transfer attrs="" in="" out="f32[8,6]"
kind k7 embedding attrs="{vocab=8}" in="i32[3] f32[4,4]"
kind k8 all_reduce attrs="" in="f32[3,4]"
group 0 axes=0
group 1 with=1
class most box=""
buffer 0 input f32[4,4] mb=0 layout="tp:S0" name="x"
buffer 1 persistent f32[36] layout="B" name="bucket" slots="0:w:B;24:e:tp:S0"
buffer 2 view f32[6,4] base=1 begin=0
buffer 3 step f32[8,4]
buffer 4 view f32[4,4] base=3 dim=0 begin=0 by=0
buffer 5 step f32[8,6]
buffer 6 step f32[8,6]
buffer 7 input i32[3] mb=0 layout="B" name="ids"
buffer 8 step f32[3,4]
buffer 9 step f32[4,4]
buffer 10 step f32[3,4] space=host
task 0 all_gather intra forward k0 layer=-1 in=0 out=3 group=0
task 1 copy compute forward k2 mb=0 layer=-1 in=4 out=9
task 2 linear compute forward k1 layer=-1 in=3,2 out=5 parts=t2 part_deps=1:0.0
task 3 send intra forward k3 layer=-1 in=5 axis=0 peer=1 tag=1
task 4 recv intra_rx forward k4 layer=-1 out=6 axis=0 peer=0 tag=1 by=1
task 5 transfer intra forward k5 layer=-1 in=6 begins=a0,b0 group=1
task 6 embedding compute forward k7 layer=-1 in=7,9 out=8 begins=v0@0
task 7 all_reduce intra forward k8 layer=-1 in=8 out=8 group=0
class one role=1 box="ep:0"
buffer 0 output f32[8,6] mb=0 layout="B" name="y"
task 0 transfer intra forward k6 layer=-1 out=0 begins=a0,b0 group=1
end
)";

std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words(1);
  bool quoted = false;
  for (const char letter : line) {
    quoted ^= letter == '"';
    if (letter == ' ' && !quoted) {
      words.emplace_back();
    } else {
      words.back() += letter;
    }
  }
  return words;
}

/// Returns the sort of a fault; one per sort is enough for a text. A line is known by its first
/// word, a kind and a task by their op too.
std::string sort_of(const std::vector<std::string>& words, size_t at, const char* fault) {
  const std::string field = words[at].substr(0, words[at].find('='));
  const bool named = words[at].size() > field.size();
  const bool has_op = words[0] == "kind" || words[0] == "task" || words[0] == "buffer";
  return words[0] + " " + (has_op ? words[2] : "") + " " + (named ? field : std::to_string(at)) +
         " " + fault;
}

/// The text with one fault, for every sort of fault: a field that is dropped or has these values.
std::vector<std::string> faulty(const std::string& text, const std::vector<const char*>& faults) {
  std::vector<std::string> lines;
  for (const std::string& line : split(text, '\n')) {
    lines.push_back(line);
  }
  std::set<std::string> known;
  std::vector<std::string> texts;
  for (size_t number = 1; number < lines.size(); ++number) {
    const std::vector<std::string> words = words_of(lines[number]);
    for (size_t at = 0; at < words.size(); ++at) {
      const size_t equals = words[at].find('=');
      for (const char* fault : faults) {
        const bool dropped = std::string_view(fault) == "dropped";
        if (!dropped && equals == std::string::npos) continue;
        if (!known.insert(sort_of(words, at, fault)).second) continue;
        const std::string value = std::string_view(fault) == "quotes"  ? "\"\""
                                  : std::string_view(fault) == "empty" ? ""
                                                                       : fault;
        std::string line;
        for (size_t i = 0; i < words.size(); ++i) {
          if (i == at && dropped) continue;
          const std::string word = i == at ? words[i].substr(0, equals + 1) + value : words[i];
          line += (line.empty() ? "" : " ") + word;
        }
        std::string changed;
        for (size_t i = 0; i < lines.size(); ++i) {
          changed += (i == number ? line : lines[i]) + "\n";
        }
        texts.push_back(std::move(changed));
      }
    }
  }
  return texts;
}

/// Reads, checks and finishes the text, and checks the result. Only an Error may be thrown.
void survive(const std::string& text, const graph::Graph* reference) {
  try {
    program::Program program = program::parse_program(text);
    const auto check = [&] {
      check::CheckOptions options;
      options.allow_unplanned = true;
      check::check_structure(program, options);
      if (reference != nullptr) {
        check::check(program, *reference, options);
      }
    };
    check();
    finish(program, "text");
    check();
  } catch (const Error&) {
  }
}

TEST(TextFaults, AreErrorsOrRefused) {
  const check::test::Case dense = dense_case();
  const std::string lowered = program::print(dense.program);
  program::Program by_hand = program::parse_program(kByHand);
  EXPECT_NO_THROW(finish(by_hand, "by hand"));
  for (const std::string& text : faulty(kByHand, {"dropped", "empty", "quotes", "999", "-1"})) {
    SCOPED_TRACE(text);
    EXPECT_NO_THROW(survive(text, nullptr));
  }
  size_t number = 0;
  for (const std::string& text : faulty(lowered, {"dropped", "empty"})) {
    SCOPED_TRACE(number++);
    EXPECT_NO_THROW(survive(text, &dense.graph));
  }
  EXPECT_GT(number, 200u);
}

std::string error_of(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, text.npos) << from;
  text.replace(at, from.size(), to);
  try {
    program::Program program = program::parse_program(text, "FILE");
    finish(program, "FILE", text);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(TextFaults, AreReportedByLineAndField) {
  const auto expect = [](const std::string& from, const std::string& to, const std::string& says) {
    const std::string said = error_of(kByHand, from, to);
    EXPECT_TRUE(said.starts_with("[FILE] line ")) << said;
    EXPECT_NE(said.find(says), std::string::npos) << said;
  };
  expect(" base=3 dim=0", " dim=0", "base is missing");
  expect(" base=3 dim=0", " base=3 dim=2", "dim is 2");
  expect(" values=0,4", "", "values has 0 numbers; expected 2");
  expect(" values=0,4", " values=0,9223372036854775807", "is no begin of anything");
  expect(" dim=0 begin=0", " dim=0 begin=-9223372036854775807", "is no begin of anything");
  expect("out=3 group=0", "out=3", "group is missing");
  expect(" axis=0 peer=1", " peer=1", "axis is missing");
  expect(" tag=1 by=1", " tag=1 by=2", "by 2 does not exist (there are 2)");
  expect("table 1 axes=0 values=1,-1", "table 1 role=1 axes=0 values=1", "table 1 is of role 1");
  expect("group 0 axes=0", "group 0 role=1 axes=0", "group 0 is of role 1; a task of it is in");
  expect("class one role=1", "class one role=-1", "role -1 does not exist");
  expect("micro_batches 1", "micro_batches 1000000000", "expected 1 to 1048576");
  // Faults of a kind: its line, its number and its op.
  expect("in=\"f32[8,4] f32[6,4]\"", "in=\"\" out=\"f32[8,6]\"",
         "line 9: kind k1 (linear): got 0 inputs");
  expect("in=\"\" out=\"f32[8,6]\"", "in=\"\"", "kind k4 (recv): got 0 inputs and 0 outputs");
}

TEST(TextFaults, KindsWithoutTasksAreLeftAlone) {
  std::string text = kByHand;
  text.insert(text.find("group 0"), "kind k9 all_gather attrs=\"{dim=0}\" in=\"f32[4,4]\"\n");
  program::Program program = program::parse_program(text);
  EXPECT_NO_THROW(finish(program, "text"));
  EXPECT_TRUE(program.kinds[9].out.empty());
}

}  // namespace
}  // namespace hocket::passes
