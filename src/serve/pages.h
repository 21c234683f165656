// SPDX-License-Identifier: Apache-2.0
// Pages of the KV cache: which are free, which sequences share one, and which hold a prefix that a
// later request may begin with.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ops/workspace.h"

namespace hocket::serve {

using PageId = int32_t;

/// A prefix is found by its tokens themselves, page by page: hashes only narrow the search.
/// Prefixes of different namespaces (adapter, version of the weights, salt) share no page.
class PagePool {
 public:
  static constexpr int64_t kTokens = ops::kPageTokens;
  explicit PagePool(int64_t pages);

  /// Pages of the longest known prefix of `tokens`, whole pages only.
  std::vector<PageId> known(std::span<const int32_t> tokens,
                            std::string_view cache_namespace) const;
  /// The same, each referenced once more.
  std::vector<PageId> find(std::span<const int32_t> tokens, std::string_view cache_namespace);
  /// The page that begins with `tokens`, fewer than a page, behind the pages of a prefix;
  /// referenced once more. None: no page in use has that name.
  std::optional<PageId> find_begin(std::span<const PageId> prefix, std::span<const int32_t> tokens,
                                   std::string_view cache_namespace);
  /// A page that nothing refers to, referenced once: an unnamed one, else the named one that was
  /// released first, whose prefix is forgotten. None: all are referenced.
  std::optional<PageId> take();
  /// Drops one reference.
  void release(PageId page);
  /// Drops the references of a sequence, so that the ends of prefixes are forgotten before their
  /// begins.
  void release(std::span<const PageId> pages);
  /// Names page number `number` of `pages` by the tokens up to its end, kTokens of which it holds;
  /// the pages before it are named. Nothing happens if another page has that name, or this one has
  /// a name.
  void name(std::span<const PageId> pages, size_t number, std::span<const int32_t> tokens,
            std::string_view cache_namespace);
  /// Names the begin of the page behind `prefix` by its tokens, fewer than a page, until it is
  /// released. Nothing happens as with name().
  void name_begin(PageId page, std::span<const PageId> prefix, std::span<const int32_t> tokens,
                  std::string_view cache_namespace);
  /// Forgets all prefixes, as after a change of the weights.
  void forget();

  int64_t size() const { return std::ssize(pages_); }
  int64_t in_use() const { return in_use_; }  ///< referenced
  /// Returns whether a page is referenced.
  bool used(PageId page) const { return pages_[static_cast<size_t>(page)].references > 0; }
  int64_t available() const { return size() - in_use_; }

 private:
  /// Name of a page's first tokens.
  struct Begin {
    uint64_t parent = 0;
    std::string cache_namespace;  ///< of a first page
    std::vector<int32_t> tokens;
    auto operator<=>(const Begin&) const = default;
  };
  struct Page {
    int32_t references = 0;
    uint64_t name = 0;    ///< 0: none
    uint64_t parent = 0;  ///< name of the page before it; 0: it is the first
    uint64_t key = 0;
    std::vector<int32_t> tokens;
    std::string cache_namespace;  ///< of a first page
    uint64_t released = 0;        ///< order among the unreferenced named ones
    std::optional<Begin> begin;
  };

  static uint64_t key_of(uint64_t parent, std::span<const int32_t> tokens,
                         std::string_view cache_namespace);
  /// The page of these tokens behind the page named `parent`; -1: none.
  PageId look_up(uint64_t parent, std::span<const int32_t> tokens,
                 std::string_view cache_namespace) const;
  /// The name of tokens behind these pages; none: they have no names.
  std::optional<Begin> begin_of(std::span<const PageId> prefix, std::span<const int32_t> tokens,
                                std::string_view cache_namespace) const;
  void reference(PageId page);
  void forget(PageId page);
  void forget_begin(PageId page);

  std::vector<Page> pages_;
  std::vector<PageId> free_;                            ///< unreferenced, without a name
  std::set<std::pair<uint64_t, PageId>> unreferenced_;  ///< with a name, first released first
  std::unordered_multimap<uint64_t, PageId> named_;     ///< by key
  std::map<Begin, PageId> begins_;
  uint64_t last_name_ = 0, last_release_ = 0;
  int64_t in_use_ = 0;
};

}  // namespace hocket::serve
