#pragma once

#include <memory>

#include "tutti/core/engine/engine.h"

namespace tutti {

/// What a new communicator is made of, beside its options.
struct Membership {
  std::shared_ptr<Store> root;   // of the job: deaths, epochs; may serve others from this process
  std::shared_ptr<Store> store;  // keys of this communicator alone
  std::shared_ptr<void> keeper;  // the server behind the store, if this process runs it
  std::vector<int> world_ranks;  // of all members, in rank order
  std::string path;              // in the root store
  // Of members of another communicator: their numbers among the ranks of their hosts in the job,
  // and what that one's backend leaves to this one's.
  std::vector<int> local_ranks;
  std::shared_ptr<Inheritance> inheritance;
};

/// Opens the job's store as the options say.
Membership join_job(const Options& options);

/// Meets the other ranks in the store, agrees with them on version and settings, connects the
/// backend and makes the engine (not started). Throws Error that names who is missing or differs.
std::shared_ptr<Engine> make_engine(const Options& options, const Membership& membership);

}  // namespace tutti
