// SPDX-License-Identifier: Apache-2.0
#include "serve/grammar/keywords.h"

#include <fmt/core.h>

#include "serve/grammar/formats.h"

namespace hocket::serve::grammar {
namespace {

using enum KeywordUse;

constexpr Keyword kKeywords[] = {
    {"type", enforced, "a name or a list; without it, the types that the other keywords are about"},
    {"enum", enforced,
     "values that the other keywords, or the table of formats, refuse are left out"},
    {"const", enforced, ""},
    {"properties", enforced, "written in the order of the schema"},
    {"required", enforced, "names without a schema of their own come last"},
    {"additionalProperties", enforced,
     "written behind the others; where it is absent and `properties` or `required` is not: none"},
    {"patternProperties", partly,
     "names that match two patterns are not written; not with `additionalProperties` of another "
     "branch of `allOf`"},
    {"propertyNames", enforced, ""},
    {"minProperties", partly, "up to the number of `properties`, and one more if others may come"},
    {"maxProperties", enforced, ""},
    {"items", enforced, "a list, as in draft 7, is read as `prefixItems`"},
    {"prefixItems", enforced, "no others follow where `items` is absent, unless `minItems` asks"},
    {"additionalItems", partly, "as in draft 7, beside a list of `items`"},
    {"minItems", enforced, ""},
    {"maxItems", enforced, ""},
    {"minLength", enforced, "counts characters"},
    {"maxLength", enforced, "counts characters"},
    {"pattern", enforced, "without look-around, back references, `\\b`, `\\p`"},
    {"format", partly, "those of the table below; others are reported by a warning"},
    {"minimum", enforced, "without exponents, as in 1e-7, unless it is 0 and alone"},
    {"maximum", enforced, "without exponents"},
    {"exclusiveMinimum", enforced, "a number, not draft 4's boolean"},
    {"exclusiveMaximum", enforced, "the same"},
    {"multipleOf", partly, "integers up to 2000"},
    {"anyOf", enforced, ""},
    {"oneOf", partly, "branches that exclude one another"},
    {"allOf", enforced, "merged"},
    {"$ref", enforced, "`#`, `#/...`, also recursive and beside other keywords"},
    {"$defs", enforced, "by `$ref`"},
    {"definitions", enforced, "by `$ref`"},
    {"uniqueItems", partly, "`false`, or with `maxItems` up to 1"},
    {"title", ignored, ""},
    {"description", ignored, ""},
    {"default", ignored, ""},
    {"example", ignored, ""},
    {"examples", ignored, ""},
    {"deprecated", ignored, ""},
    {"readOnly", ignored, ""},
    {"writeOnly", ignored, ""},
    {"optional", ignored, "some lists of tools have it"},
    {"contentEncoding", ignored, "an annotation"},
    {"contentMediaType", ignored, "an annotation"},
    {"contentSchema", ignored, "an annotation"},
    {"externalDocs", ignored, "OpenAPI's"},
    {"$comment", ignored, ""},
    {"$schema", ignored, ""},
    {"$id", ignored, "a `$ref` to it is refused"},
    {"$anchor", ignored, "a `$ref` to it is refused"},
    {"not", refused, ""},
    {"if", refused, ""},
    {"then", refused, ""},
    {"else", refused, ""},
    {"contains", refused, ""},
    {"minContains", refused, ""},
    {"maxContains", refused, ""},
    {"dependentRequired", refused, ""},
    {"dependentSchemas", refused, ""},
    {"dependencies", refused, ""},
    {"unevaluatedItems", refused, ""},
    {"unevaluatedProperties", refused, ""},
    {"$dynamicRef", refused, ""},
    {"$dynamicAnchor", refused, ""},
    {"$recursiveRef", refused, ""},
    {"$recursiveAnchor", refused, ""},
    {"$vocabulary", refused, ""},
    {"discriminator", refused, "OpenAPI's; a `const` in each branch of `oneOf` says the same"},
    {"nullable", refused, "OpenAPI's; `\"type\": [..., \"null\"]` says the same"},
};

constexpr std::string_view use_name(KeywordUse use) {
  return use == enforced  ? "enforced"
         : use == partly  ? "partly"
         : use == ignored ? "ignored"
                          : "refused";
}

}  // namespace

std::span<const Keyword> schema_keywords() { return kKeywords; }

const Keyword* find_keyword(std::string_view name) {
  for (const Keyword& keyword : kKeywords) {
    if (keyword.name == name) return &keyword;
  }
  return nullptr;
}

std::string keyword_table() {
  std::string out = "| keyword | | |\n|---|---|---|\n";
  for (const Keyword& keyword : kKeywords) {
    out += fmt::format("| `{}` | {} | {} |\n", keyword.name, use_name(keyword.use), keyword.note);
  }
  return out;
}

std::string format_table() {
  std::string out = "| format | texts |\n|---|---|\n";
  for (const StringFormat& format : string_formats()) {
    out += fmt::format("| `{}` | {} |\n", format.name, format.note);
  }
  return out;
}

}  // namespace hocket::serve::grammar
