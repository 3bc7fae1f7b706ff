#include "tutti/core/watch/death.h"

#include <fmt/format.h>
#include <string.h>

#include <cstdint>

#include "tutti/base/text.h"

namespace tutti {

namespace {

// kNextKey gives each death its index before it is written. kCountKey counts the written deaths.
constexpr auto* kNextKey = "deaths/next";
constexpr auto* kCountKey = "deaths/count";
constexpr auto* kFirstErrorKey = "deaths/first_error";

std::string death_key(int64_t number) { return fmt::format("deaths/{}", number); }

}  // namespace

void append_death(Store& store, const Death& death) {
  store.set(death_key(store.add(kNextKey, 1) - 1), encode_death(death));
  store.add(kCountKey, 1);
}

const std::vector<Death>& DeathLog::look() {
  const auto count = store_->try_get(kCountKey);
  const auto written = count ? parse_integer(*count, 0, INT64_MAX) : std::nullopt;
  while (written && read_ < *written) {
    const auto text = store_->try_get(death_key(read_));
    if (!text) break;  // this record is not written yet, but a later one is
    ++read_;
    if (auto death = decode_death(*text)) deaths_.push_back(std::move(*death));
  }
  return deaths_;
}

void write_first_error(Store& store, LaunchedRank who) {
  store.set_once(kFirstErrorKey, encode_death({.who = who, .host = {}}));
}

std::optional<LaunchedRank> read_first_error(Store& store) {
  const auto text = store.try_get(kFirstErrorKey);
  const auto record = text ? decode_death(*text) : std::nullopt;
  return record ? std::optional(record->who) : std::nullopt;
}

std::string encode_death(const Death& death) {
  const auto how = death.signal != 0 ? fmt::format("signal={}", death.signal)
                                     : fmt::format("code={}", death.code);
  return fmt::format("rank={} incarnation={} pid={} {} host={}", death.who.rank,
                     death.who.incarnation, death.pid, how, death.host);
}

std::optional<Death> decode_death(const std::string& text) {
  Death death;
  for (const auto& word : split_text(text, ' ')) {
    const auto equals = word.find('=');
    if (equals == word.npos) return {};
    const auto name = word.substr(0, equals);
    const auto value = word.substr(equals + 1);
    if (name == "host") {
      death.host = value;
      continue;
    }
    const auto number = parse_integer(value, 0, 1 << 30);
    if (!number) return {};
    const int n = static_cast<int>(*number);
    if (name == "rank") death.who.rank = n;
    if (name == "incarnation") death.who.incarnation = n;
    if (name == "pid") death.pid = n;
    if (name == "signal") death.signal = n;
    if (name == "code") death.code = n;
  }
  if (death.who.rank < 0) return {};
  return death;
}

std::string describe_death(const Death& death) {
  return death.signal != 0
             ? fmt::format("was killed by signal {} ({})", death.signal, ::strsignal(death.signal))
             : fmt::format("exited with code {}", death.code);
}

}  // namespace tutti
