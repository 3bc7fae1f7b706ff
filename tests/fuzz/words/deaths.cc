// The store's records of ranks that are gone: deaths that a launcher saw, failures that ranks
// reported, and the members that go on after a shrink. The first byte selects one of the three.

#include "tests/fuzz/harness.h"
#include "tutti/core/membership/survivors.h"

namespace tutti::fuzz {
namespace {

bool read_death(const std::string& text) {
  const auto store = make_memory_store();
  store->set("deaths/0", text);
  store->set("deaths/count", "1");
  DeathLog log(store);
  if (log.look().empty()) return false;
  const auto& death = log.look().front();
  const auto same = decode_death(encode_death(death));
  require(same && same->who == death.who && same->pid == death.pid && same->host == death.host,
          "a death does not come back");
  describe_death(death);
  return true;
}

bool read_failure(const std::string& text) {
  const auto store = make_memory_store();
  store->set("tcp/failure", text);
  try {
    return ToldFailure(*store, "tcp", 0, 3).look();
  } catch (const ToldError& error) {
    require(error.rank() >= 0 && error.rank() < 3 && error.teller() >= 0 && error.teller() < 3,
            "a failure is told of a rank that is none");
    return true;
  }
}

bool read_members(const std::string& text) {
  const std::shared_ptr<Store> store = make_memory_store();
  store->set("path/members/1", text);
  Survivors survivors(store, "path", 0,
                      {.own = 1, .launched = {{0, 0}, {1, 0}, {2, 0}}, .settle = 0});
  const auto members = survivors.agree(Deadline::after(5));
  for (const int member : members)
    require(member >= 0 && member < 3, "a survivor is none of the ranks");
  return true;
}

bool parse_deaths(std::string_view input) {
  const auto which = take_number_of(input, 1) % 3;
  const std::string text(input);
  return which == 0 ? read_death(text) : which == 1 ? read_failure(text) : read_members(text);
}

std::vector<std::string> seeds_of_deaths() {
  const auto store = make_memory_store();
  try {
    ToldFailure(*store, "tcp", 1, 3).fail(Error(ErrorCode::unavailable, "no way to rank 2"));
  } catch (const Error&) {
    // The failure is in the store now.
  }
  return {std::string(1, '\0') +
              encode_death({.who = {3, 1}, .pid = 4711, .signal = 9, .code = 0, .host = "n1"}),
          std::string(1, '\0') +
              encode_death({.who = {0, 0}, .pid = 1, .signal = 0, .code = 3, .host = ""}),
          std::string(1, '\1') + store->try_get("tcp/failure").value_or(""),
          std::string(1, '\1') + "connected", std::string(1, '\2') + "1 2"};
}

const Registered registered_deaths({.name = "deaths",
                                    .parse = parse_deaths,
                                    .seeds = seeds_of_deaths});

}  // namespace
}  // namespace tutti::fuzz
