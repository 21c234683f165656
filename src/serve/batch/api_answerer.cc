// SPDX-License-Identifier: Apache-2.0
#include "serve/batch/api_answerer.h"

#include <memory>

namespace hocket::serve {

namespace {

/// The client of a row: it goes when its answer is no longer wanted.
class RowPeer : public HttpPeer {
 public:
  explicit RowPeer(const std::function<bool()>& gone) : gone_(gone) {}
  bool gone() override { return gone_(); }

 private:
  const std::function<bool()>& gone_;
};

}  // namespace

BodyAnswerer api_answerer(ApiOptions options, Service& service, const data::Tokenizer& tokenizer,
                          const data::ChatTemplate* chat_template) {
  const auto api = std::make_shared<Api>(std::move(options), service, tokenizer, chat_template);
  return [api](const std::string& url, const std::string& body,
               const std::function<bool()>& gone) -> BodyAnswer {
    if (url != "/v1/completions" && url != "/v1/chat/completions") {
      return {404,
              api->refused(404, "url is neither /v1/completions nor /v1/chat/completions").body};
    }
    HttpRequest request;
    request.method = "POST";
    request.path = url;
    request.headers = {{"content-type", "application/json"}};
    request.body = body;
    request.address = "batch";
    RowPeer peer(gone);
    HttpResponse response = api->handle(request, peer);
    return {response.status, std::move(response.body)};
  };
}

}  // namespace hocket::serve
