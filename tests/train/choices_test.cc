// SPDX-License-Identifier: Apache-2.0
// Multiple choice: files of questions, and the tokens of choices.
#include "train/choices.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "tests/data/data_util.h"
#include "tests/data/examples/source_util.h"

namespace hocket::train {
namespace {

std::vector<ChoiceQuestion> questions_of(const std::string& text) {
  const data::TempFolder folder;
  const std::string path = folder / "questions.jsonl";
  write_file_atomic(path, text);
  return read_questions(path);
}

TEST(Choices, ReadsTheUsualFormsOfQuestions) {
  const std::vector<ChoiceQuestion> questions = questions_of(
      R"({"question": "2 + 2 =", "choices": ["3", "4"], "answer": 1})"
      "\n\n"
      R"({"ctx": "He", "endings": ["a", "b", "c"], "label": "2"})"
      "\n"
      R"({"question": "Q", "choices": {"text": ["x", "y"], "label": ["1", "2"]}, "answerKey": "2"})"
      "\n"
      R"({"query": "Q", "options": ["x", "y"], "gold": "A"})"
      "\n");
  ASSERT_EQ(questions.size(), 4u);
  EXPECT_EQ(questions[0].answer, 1u);
  EXPECT_EQ(questions[1].answer, 2u);
  EXPECT_EQ(questions[1].choices[2], "c");
  EXPECT_EQ(questions[2].answer, 1u);
  EXPECT_EQ(questions[3].answer, 0u);
  EXPECT_TRUE(questions[1].place.ends_with("questions.jsonl:3"));
}

TEST(Choices, UnpacksGzipAndZstd) {
  const data::TempFolder folder;
  const std::string text = R"({"question": "2 + 2 =", "choices": ["3", "4"], "answer": 1})";
  for (const std::string& path :
       {folder.add("a.jsonl.gz", data::gzip(text)), folder.add("a.jsonl.zst", data::zstd(text))}) {
    const std::vector<ChoiceQuestion> questions = read_questions(path);
    ASSERT_EQ(questions.size(), 1u);
    EXPECT_EQ(questions[0].place, path + ":1");
  }
  EXPECT_ERROR(read_questions(folder.add("b.jsonl.gz", text)), "b.jsonl.gz");
}

TEST(Choices, NamesTheLineOfAFault) {
  const auto refused = [](const std::string& line, const std::string& said) {
    EXPECT_ERROR(questions_of(line), said);
  };
  refused("", "has no question");
  refused("[1]", "jsonl:1] is no JSON object");
  refused(R"({"choices": ["x", "y"], "answer": 0})", "has no question; expected a string");
  refused(R"({"question": "Q", "choices": ["x"], "answer": 0})", "a list of two strings or more");
  refused(R"({"question": "Q", "choices": ["x", 3], "answer": 0})", "a list of two strings");
  refused(R"({"question": "Q", "choices": ["x", "y"]})", "has no answer");
  refused(R"({"question": "Q", "choices": ["x", "y"], "answer": 2})", "the answer is 2");
  refused(R"({"question": "Q", "choices": ["x", "y"], "answer": "C"})", "the answer is \"C\"");
  refused(R"({"question": "Q", "choices": {"text": ["x", "y"], "label": ["1"]}, "answer": "1"})",
          "a list of two strings or more");
}

}  // namespace
}  // namespace hocket::train
