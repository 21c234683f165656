// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// attention_paged gives every query the bits of `attention`, however sequences are cut into steps
// and whatever else a step has.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/small_float.h"
#include "kernel_util.h"
#include "ops/workspace.h"
#include "tests/compare_util.h"

namespace hocket::test {
namespace {

using ops::kPageTokens;

struct Shape {
  int64_t h, g, d, window = 0;
  double softcap = 0;
};

/// A sequence, its results in training, and its pages.
struct Text {
  Values q, k, v, o;
  std::vector<int32_t> pages;
  int64_t done = 0;
  int64_t size() const { return q.type.dims[0]; }
};

Values rows_of(const Values& from, int64_t begin, int64_t end) {
  Values part;
  part.type = from.type;
  part.type.dims[0] = end - begin;
  const int64_t row = from.type.numel() / from.type.dims[0];
  part.v.assign(from.v.begin() + begin * row, from.v.begin() + end * row);
  return part;
}

Attrs attrs_of(const Shape& shape) {
  Attrs attrs{{"scale", 0.3}};
  if (shape.window > 0) {
    attrs.set("window", shape.window);
  }
  if (shape.softcap > 0) {
    attrs.set("softcap", shape.softcap);
  }
  return attrs;
}

/// Rounds to bf16, so that every type has the same numbers.
Values rounded(Values values) {
  for (double& x : values.v) {
    x = Bf16::decode(Bf16::encode(static_cast<float>(x)));
  }
  return values;
}

/// Runs texts on the pages of one cache.
class Cache {
 public:
  Cache(const Shape& shape, DType dtype, int64_t pages, Random& random)
      : shape_(shape), dtype_(dtype), random_(random), order_(static_cast<size_t>(pages)) {
    keys_ = rounded(random.normals({pages, shape.g, shape.d, kPageTokens}));
    values_ = rounded(random.normals({pages, shape.g, kPageTokens, shape.d}));
    std::iota(order_.begin(), order_.end(), 0);
    for (size_t i = order_.size(); i > 1; --i) {
      std::swap(order_[i - 1], order_[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
    }
  }

  Text text(int64_t length) {
    Text text;
    text.q = rounded(random_.normals({length, shape_.h, shape_.d}));
    text.k = rounded(random_.normals({length, shape_.g, shape_.d}));
    text.v = rounded(random_.normals({length, shape_.g, shape_.d}));
    Values pos = zeros({length}, DType::i32);
    std::iota(pos.v.begin(), pos.v.end(), 0.0);
    Attrs attrs = attrs_of(shape_);
    attrs.set("group", shape_.h / shape_.g);
    // Kernels of short types work on f32 copies, and round once.
    text.o = run({"attention",
                  attrs,
                  {text.q, text.k, text.v, pos},
                  {zeros({length, shape_.h, shape_.d}), zeros({length, shape_.h})}},
                 dtype_ == DType::bf16 ? DType::f32 : dtype_)[0];
    if (dtype_ == DType::bf16) {
      text.o = rounded(std::move(text.o));
    }
    for (int64_t i = 0; i < length; i += kPageTokens) {
      text.pages.push_back(order_.back());
      order_.pop_back();
    }
    return text;
  }

  /// A step with `counts` next tokens of the texts, in this order; `padding` rows without a token
  /// come in between.
  void step(std::vector<Text*> texts, const std::vector<int64_t>& counts, int64_t padding = 0) {
    size_t columns = 1;
    for (const Text* text : texts) {
      columns = std::max(columns, text->pages.size());
    }
    Values q, k, v;
    std::vector<double> positions, sequences;
    std::vector<double> table;
    const auto append = [](Values* to, const Values& part) {
      to->v.insert(to->v.end(), part.v.begin(), part.v.end());
    };
    for (size_t i = 0; i < texts.size(); ++i) {
      Text& text = *texts[i];
      append(&q, rows_of(text.q, text.done, text.done + counts[i]));
      append(&k, rows_of(text.k, text.done, text.done + counts[i]));
      append(&v, rows_of(text.v, text.done, text.done + counts[i]));
      for (int64_t t = 0; t < counts[i]; ++t) {
        positions.push_back(static_cast<double>(text.done + t));
        sequences.push_back(static_cast<double>(i));
      }
      for (int64_t p = 0; p < (i % 2 == 0 ? padding : 0); ++p) {
        append(&q, random_.normals({1, shape_.h, shape_.d}));
        append(&k, random_.normals({1, shape_.g, shape_.d}));
        append(&v, random_.normals({1, shape_.g, shape_.d}));
        positions.push_back(-1);
        sequences.push_back(0);
      }
      for (size_t column = 0; column < columns; ++column) {
        table.push_back(column < text.pages.size() ? text.pages[column] : -1);
      }
    }
    const auto n = static_cast<int64_t>(positions.size());
    q.type = {DType::f64, {n, shape_.h, shape_.d}};
    k.type = v.type = {DType::f64, {n, shape_.g, shape_.d}};
    Values pages = integers(table);
    pages.type.dims = {std::ssize(texts), static_cast<int64_t>(columns)};
    const auto made = run({.op = "attention_paged",
                           .attrs = attrs_of(shape_),
                           .in = {q, k, v, keys_, values_, integers(positions), integers(sequences),
                                  integers(positions), integers(sequences), pages},
                           .out = {zeros({n, shape_.h, shape_.d}), keys_, values_},
                           .inplace = {{3, 1}, {4, 2}}},
                          dtype_);
    keys_.v = made[1].v;
    values_.v = made[2].v;
    const int64_t row = shape_.h * shape_.d;
    int64_t at = 0;
    for (size_t i = 0; i < texts.size(); ++i) {
      Text& text = *texts[i];
      for (int64_t t = 0; t < counts[i]; ++t, ++at) {
        for (int64_t c = 0; c < row; ++c) {
          ASSERT_EQ(made[0][at * row + c], text.o[(text.done + t) * row + c])
              << "text " << i << ", token " << text.done + t << ", number " << c;
        }
      }
      for (int64_t p = 0; p < (i % 2 == 0 ? padding : 0); ++p, ++at) {
        for (int64_t c = 0; c < row; ++c) {
          ASSERT_EQ(made[0][at * row + c], 0);
        }
      }
      text.done += counts[i];
    }
  }

 private:
  const Shape shape_;
  const DType dtype_;
  Random& random_;
  Values keys_, values_;
  std::vector<int32_t> order_;
};

constexpr Shape kShapes[] = {{4, 2, 8},         {3, 1, 20},           {9, 3, 64},
                             {2, 2, 33, 40},    {16, 1, 16},          {4, 2, 8, 5},
                             {4, 4, 8, 0, 1.5}, {4, 2, 16, 100, 0.7}, {4, 1, 8, 250}};

TEST(AttentionPaged, HasTheBitsOfTraining) {
  uint64_t seed = 1;
  for (size_t i = 0; i < std::size(kShapes); i += is_sanitized() ? 4 : 1) {
    const Shape& shape = kShapes[i];
    for_both([&](DType dtype, double) {
      Random random(++seed);
      Cache cache(shape, dtype, 60, random);
      std::vector<Text> texts;
      for (const int64_t length : {300, 1, 130, 64, 500}) {
        texts.push_back(cache.text(length));
      }
      // Prompts whole, in chunks and together with single tokens.
      cache.step({&texts[0], &texts[1]}, {224, 1});
      cache.step({&texts[2], &texts[0], &texts[4]}, {7, 1, 111}, 2);
      const auto goes_on = [](const Text& text) { return text.done < text.size(); };
      while (!::testing::Test::HasFatalFailure() && std::ranges::any_of(texts, goes_on)) {
        std::vector<Text*> some;
        std::vector<int64_t> counts;
        for (Text& text : texts) {
          if (text.done == text.size() || random.below(3) == 0) continue;
          some.push_back(&text);
          const int64_t most = random.below(2) == 0 ? 1 : 1 + random.below(90);
          counts.push_back(std::min(most, text.size() - text.done));
        }
        if (!some.empty()) {
          cache.step(some, counts, random.below(3));
        }
      }
    });
  }
}

TEST(AttentionPaged, ShortTypesAreThoseOfF32Rounded) {
  for (const Shape& shape : {Shape{4, 2, 24}, Shape{4, 2, 16, 50, 0.8}}) {
    Random random(5);
    Cache cache(shape, DType::bf16, 20, random);
    Text text = cache.text(150), other = cache.text(40);
    cache.step({&text, &other}, {100, 3});
    for (int i = 0; i < 5; ++i) {
      cache.step({&other, &text}, {1, 1});
    }
    cache.step({&text}, {45});
  }
}

TEST(AttentionPaged, RefusesPositionsWithoutAPage) {
  Random random(9);
  const Values q = random.normals({2, 2, 4}), k = random.normals({2, 1, 4});
  Values keys = random.normals({3, 1, 4, kPageTokens}),
         values = random.normals({3, 1, kPageTokens, 4});
  const auto refuses = [&](std::vector<double> positions, std::vector<double> sequences,
                           std::vector<double> table) {
    Values pages = integers(std::move(table));
    pages.type.dims = {1, pages.type.dims[0]};
    EXPECT_THROW(run({.op = "attention_paged",
                      .attrs = {{"scale", 1.0}},
                      .in = {q, k, k, keys, values, integers(positions), integers(sequences),
                             integers(positions), integers(sequences), pages},
                      .out = {zeros({2, 2, 4}), keys, values},
                      .inplace = {{3, 1}, {4, 2}}},
                     DType::f64),
                 std::runtime_error);
  };
  refuses({0, 1}, {0, 1}, {0});        // no such sequence
  refuses({31, 32}, {0, 0}, {0});      // beyond its pages
  refuses({31, 32}, {0, 0}, {0, -1});  // no page there
  refuses({0, 1}, {0, 0}, {3});        // no such page
}

}  // namespace
}  // namespace hocket::test
