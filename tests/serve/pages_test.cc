// SPDX-License-Identifier: Apache-2.0
// Pages of the KV cache: references, prefixes by their tokens, and a model of both.
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "base/rng.h"
#include "serve/pages.h"

namespace hocket::serve {
namespace {

constexpr int64_t kTokens = PagePool::kTokens;

std::vector<int32_t> text(int64_t length, int32_t first = 0) {
  std::vector<int32_t> tokens(static_cast<size_t>(length));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

/// Takes and names the pages of a whole text.
std::vector<PageId> fill(PagePool& pool, const std::vector<int32_t>& tokens,
                         const std::string& cache_namespace = "") {
  std::vector<PageId> pages = pool.find(tokens, cache_namespace);
  while (std::ssize(pages) * kTokens < std::ssize(tokens)) {
    pages.push_back(pool.take().value());
  }
  for (size_t i = 0; (i + 1) * kTokens <= tokens.size(); ++i) {
    pool.name(pages, i, tokens, cache_namespace);
  }
  return pages;
}

TEST(PagePool, FindsWholePagesOfAPrefix) {
  PagePool pool(10);
  const std::vector<int32_t> tokens = text(3 * kTokens + 5);
  const std::vector<PageId> pages = fill(pool, tokens);
  EXPECT_EQ(pool.in_use(), 4);
  EXPECT_EQ(pool.find(tokens, ""), std::vector<PageId>(pages.begin(), pages.begin() + 3));
  std::vector<int32_t> other = tokens;
  other[2 * kTokens + 1] = 7777;
  EXPECT_EQ(pool.find(other, "").size(), 2u);
  other[0] = 7777;
  EXPECT_TRUE(pool.find(other, "").empty());
  EXPECT_TRUE(pool.find(tokens, "salt").empty());
  // The same tokens elsewhere than at the begin are another page.
  EXPECT_TRUE(pool.find(std::span(tokens).subspan(kTokens), "").empty());
}

TEST(PagePool, ForgetsTheEndOfTheOldestPrefixFirst) {
  PagePool pool(4);
  const std::vector<int32_t> first = text(2 * kTokens), second = text(2 * kTokens, 1000);
  std::vector<PageId> pages = fill(pool, first);
  pool.release(pages);
  pages = fill(pool, second);
  pool.release(pages);
  EXPECT_EQ(pool.in_use(), 0);
  EXPECT_TRUE(pool.take().has_value());
  EXPECT_EQ(pool.find(first, "").size(), 1u);
  EXPECT_EQ(pool.find(second, "").size(), 2u);
  EXPECT_FALSE(pool.take().has_value());
  EXPECT_EQ(pool.available(), 0);
}

TEST(PagePool, FindsTheBeginOfAPageInUse) {
  PagePool pool(4);
  const std::vector<int32_t> tokens = text(kTokens + 9);
  const std::vector<PageId> pages = fill(pool, tokens);
  const std::span<const PageId> prefix = std::span(pages).first(1);
  const std::span<const int32_t> end = std::span(tokens).subspan(kTokens, 7);
  pool.name_begin(pages[1], prefix, end, "");
  EXPECT_EQ(pool.find_begin(prefix, end, ""), pages[1]);
  EXPECT_FALSE(pool.find_begin({}, end, ""));               // elsewhere
  EXPECT_FALSE(pool.find_begin(prefix, end.first(6), ""));  // it is found as a whole
  const std::vector<PageId> other = fill(pool, text(5), "salt");
  pool.name_begin(other[0], {}, std::span(tokens).first(5), "salt");
  EXPECT_FALSE(pool.find_begin({}, std::span(tokens).first(5), ""));
  EXPECT_EQ(pool.find_begin({}, std::span(tokens).first(5), "salt"), other[0]);
  // Another page does not take the name.
  const std::vector<PageId> again = {pool.take().value()};
  pool.name_begin(again[0], prefix, end, "");
  EXPECT_EQ(pool.find_begin(prefix, end, ""), pages[1]);
  // It is known until nothing refers to the page.
  pool.release(pages[1]);
  pool.release(pages[1]);
  EXPECT_TRUE(pool.find_begin(prefix, end, ""));
  pool.release(pages[1]);
  pool.release(pages[1]);
  EXPECT_FALSE(pool.find_begin(prefix, end, ""));
  pool.forget();
  EXPECT_FALSE(pool.find_begin({}, std::span(tokens).first(5), "salt"));
}

TEST(PagePool, ForgetsAllPrefixes) {
  PagePool pool(4);
  const std::vector<int32_t> tokens = text(2 * kTokens);
  const std::vector<PageId> pages = fill(pool, tokens);
  pool.forget();
  EXPECT_TRUE(pool.find(tokens, "").empty());
  pool.release(pages);
  EXPECT_EQ(pool.available(), 4);
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(pool.take().has_value());
  }
}

/// Random sequences: a found page always holds the tokens that it was named for, and every page is
/// referenced by exactly those that hold it.
TEST(PagePool, FoundPagesHoldTheTokensThatTheyWereNamedFor) {
  Rng rng(7);
  PagePool pool(24);
  struct Held {
    std::vector<int32_t> tokens;
    std::string cache_namespace;
    std::vector<PageId> pages;
  };
  std::vector<Held> held;
  std::map<PageId, std::vector<int32_t>> content;  // all tokens up to the end of the page
  int64_t found_pages = 0;
  for (int round = 0; round < 5000; ++round) {
    if (!held.empty() && rng.below(2) == 0) {
      const size_t i = rng.below(held.size());
      pool.release(held[i].pages);
      held.erase(held.begin() + static_cast<int64_t>(i));
      continue;
    }
    Held one;
    one.cache_namespace = rng.below(4) == 0 ? "salt" : "";
    const auto blocks = static_cast<int64_t>(1 + rng.below(5));
    for (int64_t block = 0; block < blocks; ++block) {
      // Few different pages, so that prefixes are shared.
      const std::vector<int32_t> part = text(kTokens, static_cast<int32_t>(100 * rng.below(2)));
      one.tokens.insert(one.tokens.end(), part.begin(), part.end());
    }
    one.pages = pool.find(one.tokens, one.cache_namespace);
    for (size_t i = 0; i < one.pages.size(); ++i) {
      ++found_pages;
      ASSERT_EQ(content[one.pages[i]],
                std::vector<int32_t>(one.tokens.begin(),
                                     one.tokens.begin() + static_cast<int64_t>(i + 1) * kTokens));
    }
    bool complete = true;
    for (size_t i = one.pages.size(); i < static_cast<size_t>(blocks); ++i) {
      const std::optional<PageId> page = pool.take();
      if (!page) {
        complete = false;
        break;
      }
      for (const Held& other : held) {
        ASSERT_EQ(std::ranges::count(other.pages, *page), 0);
      }
      one.pages.push_back(*page);
      content[*page].assign(one.tokens.begin(),
                            one.tokens.begin() + static_cast<int64_t>(i + 1) * kTokens);
      pool.name(one.pages, i, one.tokens, one.cache_namespace);
    }
    if (complete) {
      held.push_back(std::move(one));
    } else {
      pool.release(one.pages);
    }
    std::map<PageId, int> users;
    for (const Held& each : held) {
      for (const PageId page : each.pages) {
        ++users[page];
      }
    }
    ASSERT_EQ(pool.in_use(), std::ssize(users));
  }
  EXPECT_GT(found_pages, 1000);
}

}  // namespace
}  // namespace hocket::serve
