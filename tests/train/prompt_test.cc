// SPDX-License-Identifier: Apache-2.0
// The default prompt of a sample: the beginning of the data.
#include <gtest/gtest.h>

#include "base/utf8.h"
#include "tests/data/prepared_util.h"
#include "train/sample.h"

namespace hocket::train {
namespace {

using data::TempFolder;

/// Returns the prompt for a corpus of `files`, none of them held out.
std::string prompt_of(const std::vector<std::string>& files) {
  const TempFolder folder;
  return prompt_from(data::Dataset(data::prepare_texts(folder, files, 0)));
}

TEST(Prompt, TakesTheFirstLinesOfADocument) {
  const std::string rest(100, 'x');
  EXPECT_EQ(prompt_of({"One line\nand another\nand a third one" + rest}),
            "One line\nand another\n");
  // No line ends in time: the prompt is cut at the limit.
  EXPECT_EQ(prompt_of({std::string(80, 'a')}).size(), 32u);
  // Blank lines alone are no prompt.
  EXPECT_EQ(prompt_of({"\n\n" + std::string(80, 'b')}).size(), 32u);
}

TEST(Prompt, LeavesSomethingToSay) {
  // The first is too short; of a corpus of short ones, half of the first.
  EXPECT_EQ(prompt_of({"short", "the long one " + std::string(80, 'y')}).substr(0, 13),
            "the long one ");
  EXPECT_EQ(prompt_of({"abcdefg"}), "abcd");  // 7 letters and the end of text
}

TEST(Prompt, CutsNoCharacter) {
  std::string text = "x";
  for (int i = 0; i < 40; ++i) {
    text += "\u00e9";
  }
  const std::string prompt = prompt_of({text});
  EXPECT_TRUE(is_utf8(prompt));
  EXPECT_EQ(prompt.size(), 31u);
}

}  // namespace
}  // namespace hocket::train
