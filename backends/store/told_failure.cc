#include "tutti/backends/store/told_failure.h"

#include <fmt/format.h>

#include "tutti/base/text.h"

namespace tutti {

namespace {

constexpr std::string_view kSuccess = "connected";
constexpr int kLastCode = static_cast<int>(ErrorCode::internal);

bool is_own(int rank, const Error& error) { return error.rank() < 0 || error.rank() == rank; }

// Encodes "teller rank code text". The teller is the rank that reports the failure. `rank` is the
// rank that caused it (-1: none).
std::string encode(int teller, int rank, const Error& error, std::string_view who = {}) {
  return fmt::format("{} {} {} {}{}", teller, rank, static_cast<int>(error.code()), who,
                     error.what());
}

std::string encode_failure(int rank, const Error& error) {
  const auto* told = dynamic_cast<const ToldError*>(&error);
  const int teller = told != nullptr ? told->teller() : rank;
  const auto who = fmt::format("rank {}", rank);
  const std::string_view text = error.what();
  const bool says_who = text.starts_with(who + " ") || text.starts_with(who + ":");
  const bool names_who = told == nullptr && is_own(rank, error) && !says_who;
  return encode(teller, is_own(rank, error) ? rank : error.rank(), error,
                names_who ? who + ": " : "");
}

}  // namespace

bool ToldFailure::take(const std::string& told) const {
  if (told == kSuccess) return true;
  const auto words = split_text(told, ' ');
  const bool is_whole = words.size() >= 4;
  const auto teller = is_whole ? parse_integer(words[0], 0, size_ - 1) : std::nullopt;
  const auto rank = is_whole ? parse_integer(words[1], -1, size_ - 1) : std::nullopt;
  const auto code = is_whole ? parse_integer(words[2], 1, kLastCode) : std::nullopt;
  if (!teller || !rank || !code)
    throw Error(
        ErrorCode::corrupt_data,
        fmt::format("the store's key {} holds \"{:.60}\", which no rank writes", key_, told));
  const auto text = told.substr(words[0].size() + words[1].size() + words[2].size() + 3);
  // The report says that this rank caused the failure, but this rank knows of no fault of its own.
  // It only knows that the two ranks cannot connect. So it takes the teller as the cause.
  const bool accuses = *rank >= 0 && *rank == rank_ && *teller != rank_;
  const auto cause = accuses ? *teller : *rank;
  throw ToldError(Error(static_cast<ErrorCode>(*code), text).with_rank(static_cast<int>(cause)),
                  static_cast<int>(*teller), key_, accuses);
}

void ToldFailure::fail(const Error& error) const {
  const auto* told = dynamic_cast<const ToldError*>(&error);
  if (told != nullptr && told->key() == key_) throw ToldError(*told);
  tell(error, encode_failure(rank_, error), is_own(rank_, error));
}

void ToldFailure::fail_from_outside(const Error& error) const {
  tell(error, encode(rank_, -1, error), false);
}

void ToldFailure::tell(const Error& error, const std::string& own, bool is_own) const {
  try {
    const auto first = store_.set_once(key_, own);
    if (first == kSuccess) return;
    if (first != own && !is_own) take(first);
  } catch (const ToldError&) {
    throw;
  } catch (const Error&) {
    // Without a store no other rank can be informed. The error itself goes to the caller.
  }
  throw Error(error);
}

bool ToldFailure::look() const {
  const auto told = store_.try_get(key_);
  return told && take(*told);
}

void ToldFailure::succeed() const { take(store_.set_once(key_, kSuccess)); }

void ToldFailure::await_success(Store& view, Deadline deadline) const {
  take(view.get(key_, deadline));
}

}  // namespace tutti
