#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/support/expect_error.h"
#include "tutti/core/communicator.h"

namespace tutti::test {

/// A case of the suite: what every rank does. It works for any number of ranks from 2 on and leaves
/// the communicator fit for the next case.
struct Case {
  std::string suite, name;
  std::function<void(Communicator&)> run;
};

/// All cases of this program.
const std::vector<Case>& cases();
/// Makes it three tests, Suite.Name/threads, /processes and /hosts, and one of cases().
bool register_case(Case one, const char* file, int line);

/// TUTTI_CASE(Allreduce, Sum) { ... comm ... }
#define TUTTI_CASE(suite, name)                                        \
  static void suite##name(Communicator& comm);                         \
  static const bool suite##name##IsACase =                             \
      register_case({#suite, #name, suite##name}, __FILE__, __LINE__); \
  static_assert(true || suite##name##IsACase);                         \
  static void suite##name(Communicator& comm)

// --- tensors with known contents ----------------------------------------------------------------

/// Element i of a tensor; small whole numbers, which every dtype holds exactly.
using Formula = std::function<double(int64_t i)>;

Tensor make_tensor(const Shape& shape, DataType dtype, const Formula& formula);
/// A failure that names the first element that differs.
void expect_elements(const TensorView& tensor, const Formula& formula);
/// Shapes of 1, 2 and 3 dimensions.
std::vector<Shape> shapes();
/// All that can be added.
std::vector<DataType> numbers();
std::vector<DataType> floats();

/// Runs `body` for every dtype in `dtypes` and every one of shapes(), under a name of its own.
void for_each_tensor(const std::vector<DataType>& dtypes,
                     const std::function<void(const std::string& name, Shape, DataType)>& body);

/// A factor that is no power of two, drawn at random for each dtype (the same on every rank), and
/// so short that its products with small whole numbers are exact in every float.
double random_factor(DataType dtype);
/// What a number of `dtype` becomes when it is multiplied: whole numbers are cut toward zero.
double scaled(DataType dtype, double value, double factor);

/// Registers the tests' device in this process, for good: it must outlive every communicator that
/// has seen its memory.
void use_fake_device();

// --- errors -------------------------------------------------------------------------------------

/// Every rank gets this mismatch, with this line; the library then goes on working.
void expect_mismatch(Communicator& comm, const std::string& line,
                     const std::function<void()>& body);
/// An allreduce that is right.
void expect_still_works(Communicator& comm);
/// `submit` starts an operation under the given name: a second one under the same name is refused
/// on every rank while the first is pending, which still ends well.
void expect_duplicate_refused(Communicator& comm,
                              const std::function<Work(const std::string&)>& submit);

/// "rank 0 sent A, ranks 1-3 sent B": what ranks say when rank 0 differs from the others.
std::string rank_zero_differs(const Communicator& comm, const std::string& a, const std::string& b);

/// Runs `body` in the communicator of the ranks with this rank's parity.
void in_process_set(Communicator& comm, const std::function<void(Communicator& set)>& body);

}  // namespace tutti::test
