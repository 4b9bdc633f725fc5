// Which tile comes when.
#pragma once

namespace troupe::tile {

// Tiles that cover `size`.
__device__ inline int tiles(int size, int tile) {
  return (size + tile - 1) / tile;
}

// Tile (m, n) of a result of several, along M first: a tile of columns of the weights is read by
// all rows while it is in the cache. In bands, or many rows would push one another out of it.
struct Place {
  int m, n;
};
constexpr int kBand = 16;

__device__ inline Place place(int index, int tiles_m, int tiles_n) {
  const int band = index / (kBand * tiles_n) * kBand;
  const int height = min(kBand, tiles_m - band), in_band = index - band * tiles_n;
  return {band + in_band % height, in_band / height};
}

}  // namespace troupe::tile
