#include "tutti/core/engine/ending.h"

#include <atomic>

namespace tutti {

int Ending::gone_rank() const {
  if (departed_ >= 0) return departed_;
  // All other errors name a rank that is late or disagrees, but not gone.
  const bool is_gone = error_ && (error_->code() == ErrorCode::peer_lost ||
                                  error_->code() == ErrorCode::peer_silent ||
                                  error_->code() == ErrorCode::peer_left);
  return is_gone ? error_->rank() : -1;
}

void Ending::add_word(std::shared_ptr<uint32_t> word) {
  // Drops flags that nobody else holds, because nobody reads them any more.
  std::erase_if(words_, [](const auto& one) { return one.use_count() == 1; });
  words_.push_back(std::move(word));
}

void Ending::raise_all() {
  for (const auto& word : words_) std::atomic_ref(*word).store(1, std::memory_order_release);
  words_.clear();
}

}  // namespace tutti
