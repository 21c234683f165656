// SPDX-License-Identifier: Apache-2.0
// Fine-tuning data of a run: the balance of KTO's labels, by TRL's rule.
#include "engine/example_data.h"

#include <gtest/gtest.h>

namespace hocket::engine {
namespace {

/// Returns rows of completions of one token, as many of each label.
data::ExampleRows labelled_rows(int64_t desirable, int64_t undesirable) {
  auto examples = std::make_shared<data::TokenExamples>(data::SetKind::unpaired);
  for (int64_t i = 0; i < desirable + undesirable; ++i) {
    data::RenderedExample one;
    one.kind = data::Example::Kind::unpaired;
    one.sequences = {{.ids = {1, static_cast<int32_t>(i)}, .trained = {0, 1}}};
    one.prompt = 1;
    one.label = i < desirable;
    examples->add(one, 0, "file:1");
  }
  data::RowOptions options;
  options.seq_len = 8;
  return {examples, options};
}

std::string warning(int64_t desirable, int64_t undesirable, double weight, double other) {
  PreferenceSection preference;
  preference.desirable_weight = weight;
  preference.undesirable_weight = other;
  return labels_warning(labelled_rows(desirable, undesirable), preference);
}

TEST(ExampleData, LabelsAreCounted) {
  EXPECT_EQ(labels_text(labelled_rows(3, 2)), "3 desirable, 2 undesirable");
  auto texts = std::make_shared<data::TokenExamples>(data::SetKind::tokens);
  data::RenderedExample one;
  one.sequences = {{.ids = {1, 2}, .trained = {1, 1}}};
  texts->add(one, 0, "file:1");
  data::RowOptions options;
  options.seq_len = 8;
  const data::ExampleRows rows(texts, options);
  EXPECT_EQ(labels_text(rows), "");
  EXPECT_EQ(labels_warning(rows, {}), "");
}

TEST(ExampleData, LabelsOutOfBalanceAreWarnedOf) {
  EXPECT_EQ(warning(4, 0, 1, 1),
            "no example is undesirable; KTO learns from both kinds; expected some with label: "
            "false");
  EXPECT_NE(warning(0, 4, 1, 1).find("no example is desirable"), std::string::npos);
  EXPECT_EQ(warning(4, 4, 1, 1), "");
  EXPECT_EQ(warning(4, 4, 9, 1), "");  // as TRL, which looks at different numbers alone
  EXPECT_EQ(warning(30, 10, 1, 1),
            "30 desirable examples of weight 1 and 10 undesirable ones of weight 1 are out of "
            "balance; expected a preference.desirable_weight of 0.33 to 0.44, or a "
            "preference.undesirable_weight of 2.26 to 3");
  EXPECT_NE(warning(10, 30, 1, 1).find("of 3 to 3.99"), std::string::npos);
  // Within the range of either weight.
  EXPECT_EQ(warning(30, 10, 0.4, 1), "");
  EXPECT_EQ(warning(30, 10, 1, 2.5), "");
  EXPECT_EQ(warning(40, 30, 1, 1), "");
  EXPECT_NE(warning(30, 10, 1, 3.5), "");
}

}  // namespace
}  // namespace hocket::engine
