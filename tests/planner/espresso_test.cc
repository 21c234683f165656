// SPDX-License-Identifier: Apache-2.0
// Decisions of Espresso's public selector: those that its repository gives for two models, and
// small ones made by hand. Its tables of gaps and codec times are not available here. The decisions
// of both models are the same for all tables tried.
#include "planner/codecs/espresso.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace hocket::planner {
namespace {

EspressoInput input_of(const std::vector<int64_t>& elements, int64_t gap_us) {
  EspressoInput input;
  input.nodes = 4;
  for (const int64_t count : elements) {
    input.tensors.push_back({"", count, input.tensors.empty() ? 0 : gap_us});
  }
  return input;
}
std::vector<int> numbers(const EspressoInput& input) {
  std::vector<int> numbers;
  for (const EspressoOption& option : espresso_options(input)) {
    numbers.push_back(option.number);
  }
  return numbers;
}

/// simulator_logs/vgg16/pcie_randomk_two_cpu.json of zhuangwang93/Espresso.
TEST(Espresso, DecidesOfVgg16AsPublished) {
  const std::vector<int64_t> elements = {
      1000, 4096000, 4096, 16777216, 4096, 102760448, 512, 2359296, 512, 2359296, 512, 2359296,
      512,  2359296, 512,  2359296,  512,  1179648,   256, 589824,  256, 589824,  256, 294912,
      128,  147456,  128,  73728,    64,   36864,     64,  1728};
  const std::vector<int> published = {0, 5, 0, 9, 0, 9, 0, 5, 0, 5, 0, 5, 0, 4, 0, 4,
                                      0, 4, 0, 1, 0, 1, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0};
  for (const double codec_us : {0.0, 500.0, 1000.0}) {
    for (const int64_t gap_us : {0, 100, 380, 2000, 5380}) {
      EspressoInput input = input_of(elements, gap_us);
      input.two_level = input.cpu = true;
      input.codec_us = {0, 0, codec_us, codec_us};
      input.decode_us = {0, 0, codec_us / 2, codec_us / 2};
      EXPECT_EQ(numbers(input), published) << codec_us << " us, gaps of " << gap_us << " us";
    }
  }
}

/// simulator_logs/lstm/pcie_efsignsgd_two_cpu.json.
TEST(Espresso, DecidesOfAnLstmAsPublished) {
  const std::vector<int64_t> elements = {33278,   9000000, 9000000, 6000, 6000,
                                         9000000, 9000000, 6000,    6000, 49917000};
  for (const double codec_us : {500.0, 1000.0, 3000.0}) {
    for (const int64_t gap_us : {0, 300, 7300}) {
      EspressoInput input = input_of(elements, gap_us);
      input.two_level = input.cpu = true;
      input.sparse = false;
      input.codec_us = {0, 0, codec_us, codec_us};
      input.decode_us = {0, 0, codec_us / 2, codec_us / 2};
      EXPECT_EQ(numbers(input), (std::vector<int>{0, 5, 6, 0, 0, 6, 6, 0, 0, 6}))
          << codec_us << " us, gaps of " << gap_us << " us";
    }
  }
}

/// 2^17, 2^20 and 2^23 elements on PCIe, 2^19 and 2^22 on NVLink; above, not at them.
TEST(Espresso, DecidesByThresholdsOfSize) {
  EspressoInput input =
      input_of({1 << 17, (1 << 17) + 1, 1 << 20, (1 << 20) + 1, 1 << 23, (1 << 23) + 1}, 0);
  input.two_level = true;
  EXPECT_EQ(numbers(input), (std::vector<int>{0, 1, 1, 4, 4, 9}));
  input.two_level = false;
  EXPECT_EQ(numbers(input), (std::vector<int>{0, 1, 1, 4, 4, 4}));
  input.nvlink = input.two_level = true;
  EXPECT_EQ(numbers(input), (std::vector<int>{0, 1, 4, 4, 9, 9}));
  input.ratio = 0.001;
  EXPECT_EQ(numbers(input), (std::vector<int>{0, 1, 4, 4, 10, 10}));
  input.sparse = false;
  EXPECT_EQ(numbers(input), (std::vector<int>{0, 1, 4, 4, 6, 6}));
}

/// 2^21 elements take 2 x 150 us, 14,680 x 0.4 us inside and 12,582 x 0.8 us between nodes: 16.2
/// ms. Gradients sent before the link waits for a later gradient stay uncompressed. Gaps count
/// without their whole milliseconds, however, so that 20 ms are no gap.
TEST(Espresso, SkipsGradientsBeforeABubble) {
  EspressoInput input = input_of({1 << 21, 1 << 21}, 0);
  EXPECT_EQ(numbers(input), (std::vector<int>{4, 4}));
  input.tensors[1].gap_us = 20'000;
  EXPECT_EQ(numbers(input), (std::vector<int>{4, 4}));
  input.tensors.assign(40, {"", 1, 999});
  input.tensors.front() = {"", 1 << 21, 0};
  input.tensors.back() = {"", 1 << 21, 999};
  const std::vector<int> decided = numbers(input);
  EXPECT_EQ(decided.front(), 0);
  EXPECT_EQ(decided.back(), 4);
}

/// Codes that take longer than they save are not used.
TEST(Espresso, WeighsTheTimeOfTheCodec) {
  EspressoInput input = input_of({1 << 21}, 0);
  input.codec_us = {0, 0, 1e6, 1e6};
  EXPECT_EQ(numbers(input), (std::vector<int>{1}));
  input.codec_us = {0, 0};
  EXPECT_THROW(espresso_options(input), Error);
}

}  // namespace
}  // namespace hocket::planner
