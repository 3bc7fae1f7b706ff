// The records that ranks leave in the store before they know each other: their identity, their
// settings, and where to meet. The first byte selects one of the three.

#include "tutti/core/meeting/places.h"

#include "tests/fuzz/harness.h"
#include "tutti/core/launch/meeting.h"
#include "tutti/core/settings/version.h"

namespace tutti::fuzz {
namespace {

bool parse_places(std::string_view input) {
  const auto which = take_number_of(input, 1) % 3;
  const std::string text(input);
  if (which == 0) {
    const auto record = decode_place(2, text);
    require(record.place.pid >= 0 && record.place.world_rank >= 0 &&
                record.place.incarnation >= 0 && record.call >= 0,
            "a place with a negative number");
    const auto same = decode_place(2, encode_place(record));
    require(same.place.host == record.place.host && same.place.pid == record.place.pid &&
                same.place.cores == record.place.cores && same.call == record.call,
            "a place does not come back");
  } else if (which == 1) {
    check_terms(text, Options());
  } else {
    const auto place = decode_meeting_place(text);
    require(encode_meeting_place(place) == text, "a meeting place does not come back");
  }
  return true;
}

std::vector<std::string> seeds_of_places() {
  PlaceRecord record;
  record.place = {.host = "boot/4026531840",
                  .host_name = "n1",
                  .pid = 4711,
                  .world_rank = 3,
                  .cores = {0, 1, 5},
                  .machine = "boot",
                  .incarnation = 1};
  record.call = 17;
  Options options;
  options.rank = 0;
  return {std::string(1, '\0') + encode_place(record), std::string(1, '\1') + encode_terms(options),
          std::string(1, '\2') + encode_meeting_place({"tcp://10.0.0.3:4711", "secret"})};
}

const Registered registered_places({.name = "places",
                                    .parse = parse_places,
                                    .seeds = seeds_of_places});

}  // namespace
}  // namespace tutti::fuzz
