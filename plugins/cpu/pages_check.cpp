// edgekv_copy_pages against a plain loop; run it under the sanitizers (EDGEKV_SANITIZE=ON).
#include "pages.h"

#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "pages_check: %s\n", what);
  std::exit(1);
}

using Pool = std::vector<unsigned char>;

int32_t copy(std::vector<Pool>& pools, int64_t num_pages, int64_t page_bytes,
             const std::vector<int32_t>& source, const std::vector<int32_t>& target) {
  std::vector<unsigned char*> data;
  for (Pool& pool : pools) data.push_back(pool.data());
  return edgekv_copy_pages(data.data(), static_cast<int64_t>(data.size()), num_pages, page_bytes,
                           source.data(), target.data(), static_cast<int64_t>(source.size()));
}

}  // namespace

int main() {
  std::mt19937 random(0);
  int num_copied = 0, num_refused = 0;
  for (int round = 0; round < 2000; ++round) {
    const int num_pages = 1 + static_cast<int>(random() % 12);
    const int page_bytes = 1 + static_cast<int>(random() % 70);
    std::vector<Pool> pools(random() % 4, Pool(static_cast<size_t>(num_pages * page_bytes)));
    for (Pool& pool : pools)
      for (unsigned char& byte : pool) byte = static_cast<unsigned char>(random());
    std::vector<int32_t> source, target;
    for (unsigned i = random() % 4; i > 0; --i) {
      source.push_back(static_cast<int32_t>(random() % (num_pages + 1)) - (random() % 40 == 0));
      target.push_back(static_cast<int32_t>(random() % (num_pages + 1)) - (random() % 40 == 0));
    }
    bool inside = true, apart = true;
    for (size_t i = 0; i < source.size(); ++i) {
      inside &= source[i] >= 0 && source[i] < num_pages && target[i] >= 0 && target[i] < num_pages;
      for (size_t j = 0; j < source.size(); ++j)
        apart &= target[i] != source[j] && (i == j || target[i] != target[j]);
    }
    std::vector<Pool> wanted = pools;
    if (inside && apart)
      for (Pool& pool : wanted)
        for (size_t i = 0; i < source.size(); ++i)
          for (int byte = 0; byte < page_bytes; ++byte)
            pool[static_cast<size_t>(target[i] * page_bytes + byte)] =
                pool[static_cast<size_t>(source[i] * page_bytes + byte)];
    const int32_t code = copy(pools, num_pages, page_bytes, source, target);
    require(code == (inside ? (apart ? 0 : 2) : 1), "another code than wanted");
    require(pools == wanted, "other bytes than wanted");
    ++(code ? num_refused : num_copied);
  }
  require(num_copied > 100 && num_refused > 100, "not both outcomes were tried");
  std::puts("pages_check: ok");
}
