#include "thinning.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <numeric>
#include <vector>

#include "layout.h"

namespace {

constexpr double kEndless = 1e6;  // segments

struct Call {
  const unsigned char* segments;
  int64_t segment_bytes, num_segments, num_past;
  const int32_t* pages;
  const double* worth;
  const float* vectors;
  int64_t width;
  bool by_gap;
};

// How far apart the neighbours of each segment stand, counted in ids, while segments leave.
class Gaps {
 public:
  explicit Gaps(const Call& call) : call_(call), links_(call.num_segments) {
    for (int64_t i = 0; i < call.num_segments; ++i) links_[i] = {i - 1, i + 1};
  }

  double width(int64_t place) const {
    const Link& link = links_[place];
    if (link.before < 0 || link.after >= call_.num_segments) return kEndless;
    return std::min(static_cast<double>(id(link.after) - id(link.before)), kEndless);
  }
  void close_up(int64_t place) {
    const Link link = links_[place];
    if (link.before >= 0) links_[link.before].after = link.after;
    if (link.after < call_.num_segments) links_[link.after].before = link.before;
  }

 private:
  struct Link {
    int64_t before, after;
  };

  int64_t id(int64_t place) const {
    return reinterpret_cast<const EdgekvSegment*>(call_.segments + place * call_.segment_bytes)->id;
  }

  const Call& call_;
  std::vector<Link> links_;
};

// In double precision, whose sum is the same in any order as far as a float shows: every machine
// chooses alike.
float dot(const float* a, const float* b, int64_t width) {
  constexpr int kLanes = 8;
  double sums[kLanes] = {}, rest = 0;
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane)
      sums[lane] += static_cast<double>(a[i + lane]) * b[i + lane];
  for (; i < width; ++i) rest += static_cast<double>(a[i]) * b[i];
  return static_cast<float>(std::accumulate(sums, sums + kLanes, rest));
}

// How far each segment's vector is from the nearest other one that is still there, 1 - cosine.
class Nearest {
 public:
  explicit Nearest(const Call& call)
      : num_segments_(call.vectors ? call.num_segments : 0),
        norms_(num_segments_),
        products_(num_segments_ * num_segments_),
        found_(num_segments_) {
    for (int64_t i = 0; i < num_segments_; ++i) {
      const float* vector = call.vectors + i * call.width;
      const float norm = std::sqrt(dot(vector, vector, call.width));
      norms_[i] = norm > 0 ? norm : 0;  // NaN: no vector
      for (int64_t j = 0; norms_[i] && j < i; ++j)
        products_[i * num_segments_ + j] = products_[j * num_segments_ + i] =
            norms_[j] ? dot(vector, call.vectors + j * call.width, call.width) : 0;
    }
  }

  double norm(int64_t place) const { return norms_[place]; }
  double distance(int64_t place, const std::vector<char>& here) {
    Found& found = found_[place];
    if (found.place < 0 || !here[found.place]) found = search(place, here);
    return std::max(found.distance, 0.f);
  }

 private:
  struct Found {
    int64_t place = -1;
    float distance = 0;
  };

  Found search(int64_t place, const std::vector<char>& here) const {
    const float* products = products_.data() + place * num_segments_;
    Found best{place, std::numeric_limits<float>::infinity()};
    for (int64_t i = 0; i < num_segments_; ++i) {
      if (i == place || !here[i] || !norms_[i]) continue;
      const float distance = 1.f - products[i] / (norms_[place] * norms_[i]);
      if (distance < best.distance) best = {i, distance};
    }
    return best;
  }

  const int64_t num_segments_;
  std::vector<float> norms_, products_;
  std::vector<Found> found_;
};

class Thinning {
 public:
  explicit Thinning(const Call& call)
      : call_(call), here_(call.num_segments, 1), gaps_(call), nearest_(call) {}

  int64_t pages(int64_t place) const {
    if (call_.pages) return call_.pages[place];
    const unsigned char* segment = call_.segments + place * call_.segment_bytes;
    return reinterpret_cast<const EdgekvSegment*>(segment)->num_pages;
  }
  bool is_here(int64_t place) const { return here_[place]; }
  double rate(int64_t place) {
    double rating = call_.worth ? call_.worth[place] : 1;
    if (call_.vectors) {
      if (!nearest_.norm(place)) return -1;  // without a vector: before all others
      rating *= nearest_.distance(place, here_) * nearest_.norm(place);
    }
    if (call_.by_gap) rating *= gaps_.width(place);
    return rating == rating ? rating : -1;  // no number: as good as nothing
  }
  void forget(int64_t place) {
    here_[place] = 0;
    gaps_.close_up(place);
  }

 private:
  const Call& call_;
  std::vector<char> here_;
  Gaps gaps_;
  Nearest nearest_;
};

// The lowest rated of the past, of equals the oldest; -1 if nothing is left to leave.
int64_t lowest(Thinning& thinning, int64_t num_past) {
  int64_t found = -1;
  double least = 0;
  for (int64_t place = 0; place < num_past; ++place) {
    // Pages that forks hold too come free only with the forks: those cannot be given back.
    if (!thinning.is_here(place) || !thinning.pages(place)) continue;
    const double rating = thinning.rate(place);
    if (found < 0 || rating < least) found = place, least = rating;
  }
  return found;
}

// Returns the pages that could not be given back.
int64_t run(Thinning& thinning, int64_t num_past, int64_t num_pages) {
  while (num_pages > 0) {
    const int64_t place = lowest(thinning, num_past);
    if (place < 0) break;
    num_pages -= thinning.pages(place);
    thinning.forget(place);
  }
  return std::max<int64_t>(num_pages, 0);
}

}  // namespace

int64_t edgekv_thin_out(const unsigned char* segments, int64_t segment_bytes, int64_t num_segments,
                        int64_t num_past, const int32_t* pages, const double* worth,
                        const float* vectors, int64_t width, int32_t by_gap, int64_t num_pages,
                        int64_t* gone, int64_t* missing) try {
  const Call call{segments, segment_bytes, num_segments, num_past,   pages,
                  worth,    vectors,       width,        by_gap != 0};
  Thinning thinning(call);
  *missing = run(thinning, num_past, num_pages);
  int64_t num_gone = 0;
  for (int64_t place = 0; place < num_past; ++place)
    if (!thinning.is_here(place)) gone[num_gone++] = place;
  return num_gone;
} catch (const std::bad_alloc&) {
  return -1;
}
