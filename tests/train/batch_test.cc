// SPDX-License-Identifier: Apache-2.0
// Sequences of a step, and their order.
#include <gtest/gtest.h>

#include <memory>
#include <numeric>

#include "data/shards.h"
#include "tests/data/data_util.h"
#include "train/schedule.h"

namespace hocket::train {
namespace {

TEST(BatchOf, RowsAreTheSequencesOfTheTrainingInOrder) {
  const data::TempFolder folder;
  data::ShardWriter writer(1000, {1, 1});
  std::vector<int32_t> ids(200);
  std::iota(ids.begin(), ids.end(), 1);
  writer.add(ids, 200);
  const std::string path = folder / "train-00000.bin";
  writer.write(path);
  const int64_t rows = 4, length = 5;
  const data::PackedLoader loader(
      std::make_shared<data::TokenStream>(std::vector<std::string>{path}), length, 0, 7);
  for (int64_t step : {1, 2, 5, 11}) {  // 40 sequences an epoch: step 11 is in the second one
    const engine::Batch batch =
        batch_of(loader, step, std::vector<bool>(static_cast<size_t>(rows), true), length);
    ASSERT_EQ(batch.tokens.size(), static_cast<size_t>(rows * length));
    for (int64_t r = 0; r < rows; ++r) {
      engine::Batch one(1, length);
      loader.fill((step - 1) * rows + r, one.row(0));
      for (int64_t i = 0; i < length; ++i) {
        const size_t at = static_cast<size_t>(r * length + i), k = static_cast<size_t>(i);
        EXPECT_EQ(batch.tokens[at], one.tokens[k]) << "step " << step << " row " << r;
        EXPECT_EQ(batch.targets[at], one.targets[k]);
        EXPECT_EQ(batch.positions[at], one.positions[k]);
      }
    }
  }
}

}  // namespace
}  // namespace hocket::train
