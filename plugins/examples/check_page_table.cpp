// Prints the tables of a stream of segments, so that a test can hold them to edgekv's own cache.
//
// Reads from standard input: pages, page size, columns; then one operation a line: "a COUNT" appends a
// segment, "c COUNT" continues the last one, "d PINNED" drops the oldest. Each append prints slots,
// limits, indices, positions and the used part of the table; one that does not fit prints "full".

#include <cstdio>

#include "page_table.h"

namespace {

template <class Number>
void print(const std::vector<Number>& numbers, size_t count) {
  for (size_t i = 0; i < count; ++i) std::printf("%lld ", static_cast<long long>(numbers[i]));
  std::printf("| ");
}

}  // namespace

int main() {
  using namespace edgekv::example;
  int pages = 0, size = 0, columns = 0, number = 0;
  char operation = 0;
  if (std::scanf("%d %d %d", &pages, &size, &columns) != 3) return 2;
  PageTable table(pages, size, columns);
  StepTables step;
  while (std::scanf(" %c %d", &operation, &number) == 2) {
    if (operation == 'd') {
      if (!table.drop_oldest(size_t(number))) std::printf("nothing to drop\n");
      continue;
    }
    if (!table.append(number, operation == 'a', step)) {
      std::printf("full\n");
      continue;
    }
    print(step.slot_mapping, step.slot_mapping.size());
    print(step.kv_limits, step.kv_limits.size());
    print(step.query_indices, step.query_indices.size());
    print(step.position_ids, step.position_ids.size());
    size_t used = step.page_table.size();
    while (used > 0 && step.page_table[used - 3] < 0) used -= 3;
    print(step.page_table, used);
    std::printf("\n");
  }
  return 0;
}
