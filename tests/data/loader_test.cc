// SPDX-License-Identifier: Apache-2.0
// Sequences out of a stream: each token once an epoch, from its own document only, and the bytes
// that validation stands for.
#include "data/loader.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/rng.h"
#include "tests/data/data_util.h"

namespace hocket::data {
namespace {

constexpr int32_t kEos = 0;
constexpr int32_t kVocab = 100000;

struct Row {
  explicit Row(int64_t n)
      : tokens(static_cast<size_t>(n), -7), targets(tokens), positions(tokens) {}
  SequenceOut out() { return {tokens, targets, positions}; }
  std::vector<int32_t> tokens, targets, positions;
};

// Documents of random lengths; token number i of the stream (ends aside) is i + 1: all differ.
class Loader : public testing::Test {
 protected:
  std::shared_ptr<const TokenStream> make(uint64_t seed, int documents, int64_t longest) {
    Rng rng(seed);
    std::vector<std::string> paths;
    std::vector<int32_t> ids;
    all_.clear();
    first_.clear();
    for (int shard = 0; shard < 3; ++shard) {
      ShardWriter writer(kVocab, {1, 1});
      for (int d = 0; d < documents; ++d) {
        ids.clear();
        first_.insert(static_cast<int64_t>(all_.size()));
        for (int64_t n = rng.between(0, longest); n > 0; --n) {
          ids.push_back(static_cast<int32_t>(all_.size() + ids.size()) + 1);
        }
        const auto bytes = static_cast<int64_t>(ids.size()) * 2;
        ids.push_back(kEos);
        all_.insert(all_.end(), ids.begin(), ids.end());
        writer.add(ids, bytes);
      }
      paths.push_back(folder_ / fmt::format("{}-{}", seed, shard));
      writer.write(paths.back());
    }
    return std::make_shared<TokenStream>(paths);
  }
  // Checks a sequence with targets t[begin...] against the definition.
  void check(const Row& row, int64_t begin, int64_t count) {
    const auto total = static_cast<int64_t>(all_.size());
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = (begin + i) % total;
      const auto n = static_cast<size_t>(i);
      ASSERT_EQ(row.targets[n], all_[at]);
      ASSERT_EQ(row.tokens[n], at == 0 ? kEos : all_[at - 1]);
      if (i == 0 || first_.contains(at)) {
        ASSERT_EQ(row.positions[n], 0);
      } else {
        ASSERT_EQ(row.positions[n], row.positions[n - 1] + 1);
      }
    }
  }

  TempFolder folder_;
  std::vector<int32_t> all_;
  std::set<int64_t> first_;  // where documents begin
};

TEST(Permutation, MapsItsRangeOntoItself) {
  for (const uint64_t size : {1, 2, 3, 4, 5, 16, 17, 100, 1000, 4096, 4097}) {
    std::set<uint64_t> seen;
    const Permutation p(size, size * 31 + 1);
    for (uint64_t i = 0; i < size; ++i) {
      const uint64_t to = p(i);
      ASSERT_LT(to, size);
      seen.insert(to);
    }
    EXPECT_EQ(seen.size(), size);
  }
}

TEST(Permutation, LooksRandom) {
  const uint64_t size = 5000;
  const Permutation p(size, 9), q(size, 10);
  int64_t fixed = 0, same = 0, rising = 0;
  double product = 0;
  for (uint64_t i = 0; i < size; ++i) {
    fixed += p(i) == i;
    same += p(i) == q(i);
    rising += i > 0 && p(i) > p(i - 1);
    product += (static_cast<double>(i) / size - 0.5) * (static_cast<double>(p(i)) / size - 0.5);
  }
  EXPECT_LT(fixed, 8);  // 1 expected
  EXPECT_LT(same, 8);
  EXPECT_NEAR(static_cast<double>(rising), size / 2.0, 100);  // five standard deviations
  EXPECT_LT(std::abs(product / size * 12), 0.07);             // correlation
}

TEST_F(Loader, SequencesFollowTheDefinition) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const auto stream = make(seed, 8, seed % 2 == 0 ? 9 : 40);
    const auto total = static_cast<int64_t>(all_.size());
    for (const int64_t length : {1, 4, 7, 32}) {
      const PackedLoader loader(stream, length, kEos, seed);
      const int64_t per_epoch = loader.sequences_per_epoch();
      EXPECT_EQ(per_epoch, total / length);
      for (int64_t epoch = 0; epoch < 3; ++epoch) {
        std::multiset<int32_t> targets;
        int64_t ends = 0;
        for (int64_t i = 0; i < per_epoch; ++i) {
          Row row(length);
          loader.fill(epoch * per_epoch + i, row.out());
          // Find where it begins by a target that is no end of text.
          int64_t begin = -1;
          for (int64_t n = 0; n < length && begin < 0; ++n) {
            const int32_t target = row.targets[n];
            if (target != kEos) {
              begin = (target - 1 - n + total) % total;
            }
          }
          if (begin >= 0) {
            check(row, begin, length);
          }
          for (const int32_t t : row.targets) {
            ends += t == kEos;
            if (t != kEos) {
              targets.insert(t);
            }
          }
        }
        // Disjoint: nothing occurs twice, and less than a sequence is left out.
        const std::set<int32_t> unique(targets.begin(), targets.end());
        EXPECT_EQ(unique.size(), targets.size());
        EXPECT_EQ(static_cast<int64_t>(targets.size()) + ends, per_epoch * length);
      }
    }
  }
}

TEST_F(Loader, IsAPureFunctionOfSeedAndIndex) {
  const auto stream = make(3, 30, 20);
  const PackedLoader a(stream, 16, kEos, 5), b(stream, 16, kEos, 5), other(stream, 16, kEos, 6);
  int same = 0;
  const int64_t n = a.sequences_per_epoch();
  std::set<std::vector<int32_t>> first_epoch;
  int repeated = 0;
  for (int64_t i = 3 * n - 1; i >= 0; --i) {  // any order
    Row x(16), y(16), z(16);
    a.fill(i, x.out());
    b.fill(i, y.out());
    other.fill(i, z.out());
    EXPECT_EQ(x.tokens, y.tokens);
    EXPECT_EQ(x.targets, y.targets);
    EXPECT_EQ(x.positions, y.positions);
    same += x.targets == z.targets;
    repeated += !first_epoch.insert(x.targets).second;
  }
  EXPECT_LT(same, 5);
  EXPECT_LT(repeated, n / 2);  // epochs are cut elsewhere
}

TEST_F(Loader, RefusesTooLittleData) {
  const auto stream = make(1, 2, 3);
  EXPECT_ERROR(PackedLoader(stream, 1000, kEos, 0), "less than one sequence of 1000");
  EXPECT_ERROR(PackedLoader(stream, 0, kEos, 0), "sequence length 0");
  EXPECT_ERROR(ValidLoader(stream, 8, kEos, {1, 2}), "tokenizer of 2");
}

TEST_F(Loader, ValidationCoversEveryByteOnce) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const auto stream = make(seed, 5, 30);
    std::vector<int32_t> lengths(kVocab, 2);
    lengths[kEos] = 0;
    for (const int64_t length : {1, 8, 13, 1000}) {
      const ValidLoader loader(stream, length, kEos, lengths);
      int64_t bytes = 0, predicted = 0;
      for (int64_t i = 0; i < loader.size(); ++i) {
        Row row(length);
        bytes += loader.fill(i, row.out());
        const int64_t count = std::min(length, static_cast<int64_t>(all_.size()) - i * length);
        check(row, i * length, count);
        predicted += count;
        for (int64_t n = count; n < length; ++n) {
          const auto at = static_cast<size_t>(n);
          EXPECT_EQ(row.tokens[at], kEos);
          EXPECT_EQ(row.targets[at], kIgnoredTarget);
          EXPECT_EQ(row.positions[at], padding_position(n - count));
        }
      }
      EXPECT_EQ(bytes, loader.bytes());
      EXPECT_EQ(predicted, static_cast<int64_t>(all_.size()));
    }
    const ValidLoader loader(stream, 8, kEos, lengths);
    EXPECT_EQ(static_cast<int64_t>(loader.sample(1000).size()), loader.size());
    const std::vector<int64_t> some = loader.sample(4);
    EXPECT_EQ(std::set<int64_t>(some.begin(), some.end()).size(), 4U);
    EXPECT_LT(some.back(), loader.size());
  }
}

}  // namespace
}  // namespace hocket::data
