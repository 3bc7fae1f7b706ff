#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/support/expect_error.h"
#include "tutti/core/communicator.h"

namespace tutti::test {

/// A case of the suite, which every rank runs. It works for any number of ranks from 2 on, and the
/// communicator can be used for the next case afterwards.
struct Case {
  std::string suite, name;
  std::function<void(Communicator&)> run;
};

/// All cases of this program.
const std::vector<Case>& cases();
/// Registers three tests of the case, Suite.Name/threads, /processes and /hosts, and adds the case
/// to cases().
bool register_case(Case one, const char* file, int line);

/// Defines a case: TUTTI_CASE(Allreduce, Sum) { ... comm ... }
#define TUTTI_CASE(suite, name)                                        \
  static void suite##name(Communicator& comm);                         \
  static const bool suite##name##IsACase =                             \
      register_case({#suite, #name, suite##name}, __FILE__, __LINE__); \
  static_assert(true || suite##name##IsACase);                         \
  static void suite##name(Communicator& comm)

// --- tensors with known contents ----------------------------------------------------------------

/// Returns element i of a tensor: small integers, which every dtype holds exactly.
using Formula = std::function<double(int64_t i)>;

Tensor make_tensor(const Shape& shape, DataType dtype, const Formula& formula);
/// Fails with the first element that differs.
void expect_elements(const TensorView& tensor, const Formula& formula);
/// Returns shapes of 1, 2 and 3 dimensions.
std::vector<Shape> shapes();
/// Returns all dtypes that can be added.
std::vector<DataType> numbers();
std::vector<DataType> floats();

/// Runs `body` for every dtype in `dtypes` and every shape of shapes(), each under its own name.
void for_each_tensor(const std::vector<DataType>& dtypes,
                     const std::function<void(const std::string& name, Shape, DataType)>& body);

/// Returns a random factor for each dtype, the same on every rank. It is not a power of two, and
/// has so few bits that its products with small integers are exact in every float.
double random_factor(DataType dtype);
/// Returns `value` times `factor` as `dtype` holds it: integers are truncated.
double scaled(DataType dtype, double value, double factor);

/// Registers the tests' device in this process for good, because it must outlive every communicator
/// that has seen its memory.
void use_fake_device();

// --- errors -------------------------------------------------------------------------------------

/// Expects that every rank gets a mismatch error with this line, and that the library then goes on
/// working.
void expect_mismatch(Communicator& comm, const std::string& line,
                     const std::function<void()>& body);
/// Runs one allreduce and expects the right sum.
void expect_still_works(Communicator& comm);
/// `submit` starts an operation under the given name. While the first operation is pending, every
/// rank refuses a second one under the same name. The first one still ends well.
void expect_duplicate_refused(Communicator& comm,
                              const std::function<Work(const std::string&)>& submit);

/// Returns the text "rank 0 sent A, ranks 1-3 sent B" of an error in which rank 0 differs.
std::string rank_zero_differs(const Communicator& comm, const std::string& a, const std::string& b);

/// Runs `body` in a communicator of the ranks with the same parity as this rank.
void in_process_set(Communicator& comm, const std::function<void(Communicator& set)>& body);

}  // namespace tutti::test
