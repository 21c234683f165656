// SPDX-License-Identifier: Apache-2.0
#include "serve/pages.h"

#include <algorithm>

#include "base/error.h"
#include "base/hash.h"

namespace hocket::serve {

PagePool::PagePool(int64_t pages) : pages_(static_cast<size_t>(pages)) {
  for (PageId page = static_cast<PageId>(pages) - 1; page >= 0; --page) {
    free_.push_back(page);
  }
}

uint64_t PagePool::key_of(uint64_t parent, std::span<const int32_t> tokens,
                          std::string_view cache_namespace) {
  const std::string_view bytes(reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes());
  return hash64(bytes, parent != 0 ? parent : hash64(cache_namespace, 0));
}

PageId PagePool::look_up(uint64_t parent, std::span<const int32_t> tokens,
                         std::string_view cache_namespace) const {
  const auto [begin, end] = named_.equal_range(key_of(parent, tokens, cache_namespace));
  for (auto it = begin; it != end; ++it) {
    const Page& page = pages_[static_cast<size_t>(it->second)];
    if (page.parent == parent && std::ranges::equal(page.tokens, tokens) &&
        (parent != 0 || page.cache_namespace == cache_namespace)) {
      return it->second;
    }
  }
  return -1;
}

std::vector<PageId> PagePool::known(std::span<const int32_t> tokens,
                                    std::string_view cache_namespace) const {
  std::vector<PageId> found;
  uint64_t parent = 0;
  for (; std::ssize(tokens) >= kTokens; tokens = tokens.subspan(kTokens)) {
    const PageId page = look_up(parent, tokens.first(kTokens), cache_namespace);
    if (page < 0) break;
    found.push_back(page);
    parent = pages_[static_cast<size_t>(page)].name;
  }
  return found;
}

std::vector<PageId> PagePool::find(std::span<const int32_t> tokens,
                                   std::string_view cache_namespace) {
  std::vector<PageId> found = known(tokens, cache_namespace);
  for (const PageId page : found) {
    reference(page);
  }
  return found;
}

std::optional<PagePool::Begin> PagePool::begin_of(std::span<const PageId> prefix,
                                                  std::span<const int32_t> tokens,
                                                  std::string_view cache_namespace) const {
  Begin begin;
  begin.tokens.assign(tokens.begin(), tokens.end());
  if (prefix.empty()) {
    begin.cache_namespace = cache_namespace;
    return begin;
  }
  begin.parent = pages_[static_cast<size_t>(prefix.back())].name;
  if (begin.parent == 0) return std::nullopt;
  return begin;
}

std::optional<PageId> PagePool::find_begin(std::span<const PageId> prefix,
                                           std::span<const int32_t> tokens,
                                           std::string_view cache_namespace) {
  const std::optional<Begin> begin = begin_of(prefix, tokens, cache_namespace);
  const auto found = begin ? begins_.find(*begin) : begins_.end();
  if (found == begins_.end()) return std::nullopt;
  reference(found->second);
  return found->second;
}

void PagePool::reference(PageId id) {
  Page& page = pages_[static_cast<size_t>(id)];
  if (page.references++ > 0) return;
  ++in_use_;
  unreferenced_.erase({page.released, id});
}

std::optional<PageId> PagePool::take() {
  PageId id;
  if (!free_.empty()) {
    id = free_.back();
    free_.pop_back();
  } else if (!unreferenced_.empty()) {
    id = unreferenced_.begin()->second;
    unreferenced_.erase(unreferenced_.begin());
    forget(id);
  } else {
    return std::nullopt;
  }
  pages_[static_cast<size_t>(id)].references = 1;
  ++in_use_;
  return id;
}

void PagePool::release(PageId id) {
  Page& page = pages_[static_cast<size_t>(id)];
  HOCKET_CHECK(page.references > 0, "page {} is released more often than it was taken", id);
  if (--page.references > 0) return;
  --in_use_;
  forget_begin(id);
  if (page.name == 0) {
    free_.push_back(id);
    return;
  }
  page.released = ++last_release_;
  unreferenced_.insert({page.released, id});
}

void PagePool::release(std::span<const PageId> pages) {
  for (size_t i = pages.size(); i > 0; --i) {
    release(pages[i - 1]);
  }
}

void PagePool::name(std::span<const PageId> pages, size_t number, std::span<const int32_t> tokens,
                    std::string_view cache_namespace) {
  Page& page = pages_[static_cast<size_t>(pages[number])];
  if (page.name != 0) return;
  const uint64_t parent = number == 0 ? 0 : pages_[static_cast<size_t>(pages[number - 1])].name;
  // A page behind one whose name another page has is found through that other one.
  if (number > 0 && parent == 0) return;
  const std::span<const int32_t> own = tokens.subspan(number * kTokens, kTokens);
  if (look_up(parent, own, cache_namespace) >= 0) return;
  page.name = ++last_name_;
  page.parent = parent;
  page.key = key_of(parent, own, cache_namespace);
  page.tokens.assign(own.begin(), own.end());
  page.cache_namespace = parent == 0 ? cache_namespace : std::string_view();
  named_.emplace(page.key, pages[number]);
}

void PagePool::name_begin(PageId id, std::span<const PageId> prefix,
                          std::span<const int32_t> tokens, std::string_view cache_namespace) {
  Page& page = pages_[static_cast<size_t>(id)];
  std::optional<Begin> begin = begin_of(prefix, tokens, cache_namespace);
  if (page.begin || !begin || !begins_.emplace(*begin, id).second) return;
  page.begin = std::move(begin);
}

void PagePool::forget_begin(PageId id) {
  std::optional<Begin>& begin = pages_[static_cast<size_t>(id)].begin;
  if (!begin) return;
  begins_.erase(*begin);
  begin.reset();
}

void PagePool::forget(PageId id) {
  Page& page = pages_[static_cast<size_t>(id)];
  if (page.name == 0) return;
  const auto [begin, end] = named_.equal_range(page.key);
  named_.erase(std::find_if(begin, end, [id](const auto& entry) { return entry.second == id; }));
  page.name = page.parent = 0;
  page.tokens.clear();
  page.cache_namespace.clear();
}

void PagePool::forget() {
  for (const auto& [released, id] : unreferenced_) {
    free_.push_back(id);
  }
  unreferenced_.clear();
  for (PageId id = 0; id < std::ssize(pages_); ++id) {
    forget(id);
    forget_begin(id);
  }
}

}  // namespace hocket::serve
