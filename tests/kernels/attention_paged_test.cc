// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// attention_paged gives every query the bits of `attention`, however sequences are cut into steps
// and whatever else a step has.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <utility>

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
  int32_t copied = -1;  ///< page that the next step copies up to `done`
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
      text.pages.push_back(page());
    }
    return text;
  }
  int32_t page() {
    const int32_t taken = order_.back();
    order_.pop_back();
    return taken;
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
    std::vector<double> table, copied;
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
      copied.insert(copied.end(), {static_cast<double>(std::exchange(text.copied, -1)),
                                   static_cast<double>(text.done)});
    }
    const auto n = static_cast<int64_t>(positions.size());
    q.type = {DType::f64, {n, shape_.h, shape_.d}};
    k.type = v.type = {DType::f64, {n, shape_.g, shape_.d}};
    Values pages = integers(table);
    pages.type.dims = {std::ssize(texts), static_cast<int64_t>(columns)};
    Values copies = integers(copied);
    copies.type.dims = {std::ssize(texts), 2};
    const auto made = run({.op = "attention_paged",
                           .attrs = attrs_of(shape_),
                           .in = {q, k, v, keys_, values_, integers(positions), integers(sequences),
                                  integers(positions), integers(sequences), pages, copies},
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

/// Texts with the same begin: whole pages are shared, the begin of the next one is copied in the
/// step that writes it, or later.
TEST(AttentionPaged, CopiedTokensGiveTheSameBits) {
  for (const int64_t begin : {1, 11, 31, 32, 42, 95}) {
    for_both([&](DType dtype, double) {
      Random random(static_cast<uint64_t>(begin));
      Cache cache({4, 2, 16}, dtype, 20, random);
      Text first = cache.text(140);
      const auto sibling = [&] {
        Text made = first;
        for (size_t i = static_cast<size_t>((begin - 1) / kPageTokens); i < made.pages.size();
             ++i) {
          made.pages[i] = cache.page();
        }
        made.done = begin;
        made.copied = first.pages[static_cast<size_t>((begin - 1) / kPageTokens)];
        return made;
      };
      Text together = sibling();
      cache.step({&together, &first}, {1, begin + 1});
      cache.step({&first, &together}, {34, 1});
      Text later = sibling();
      cache.step({&first, &later, &together}, {1, 34, 34});
      cache.step({&first, &later, &together}, {1, 1, 1});
    });
  }
}

TEST(AttentionPaged, RefusesPositionsWithoutAPage) {
  Random random(9);
  const Values q = random.normals({2, 2, 4}), k = random.normals({2, 1, 4});
  Values keys = random.normals({3, 1, 4, kPageTokens}),
         values = random.normals({3, 1, kPageTokens, 4});
  const auto refuses = [&](std::vector<double> positions, std::vector<double> sequences,
                           std::vector<double> table, std::vector<double> copy = {-1, 0}) {
    Values pages = integers(std::move(table)), copies = integers(std::move(copy));
    pages.type.dims = {1, pages.type.dims[0]};
    copies.type.dims = {1, 2};
    EXPECT_THROW(run({.op = "attention_paged",
                      .attrs = {{"scale", 1.0}},
                      .in = {q, k, k, keys, values, integers(positions), integers(sequences),
                             integers(positions), integers(sequences), pages, copies},
                      .out = {zeros({2, 2, 4}), keys, values},
                      .inplace = {{3, 1}, {4, 2}}},
                     DType::f64),
                 std::runtime_error);
  };
  refuses({0, 1}, {0, 1}, {0});        // no such sequence
  refuses({31, 32}, {0, 0}, {0});      // beyond its pages
  refuses({31, 32}, {0, 0}, {0, -1});  // no page there
  refuses({0, 1}, {0, 0}, {3});        // no such page
  refuses({0, 1}, {0, 0}, {0}, {3, 1});
  refuses({0, 1}, {0, 0}, {0}, {1, 33});  // beyond its pages
}

}  // namespace
}  // namespace hocket::test
