// Numbers as texts, and texts as numbers.

const grouped = (number) => String(number).replace(/\B(?=(\d{3})+(?!\d))/g, ",");

// A BigInt over a divisor with so many decimals, rounded half up.
function decimal(number, divisor, places) {
  const scale = 10n ** BigInt(places);
  const scaled = (number * scale * 2n + divisor) / (divisor * 2n);
  const digits = String(scaled).padStart(places + 1, "0");
  const whole = grouped(digits.slice(0, digits.length - places));
  return places ? `${whole}.${digits.slice(-places)}` : whole;
}

const BINARY = [["YiB", 80n], ["ZiB", 70n], ["EiB", 60n], ["PiB", 50n], ["TiB", 40n], ["GiB", 30n], ["MiB", 20n], ["KiB", 10n]];
const DECIMAL = [["E", 18n], ["P", 15n], ["T", 12n], ["G", 9n], ["M", 6n], ["k", 3n]];

// A number too large for any prefix that people know: 2.26e33.
function powerText(number, places = 2) {
  const exponent = String(number).length - 1;
  const text = decimal(number, 10n ** BigInt(exponent), places);
  return text.startsWith("10") ? `${decimal(1n, 1n, places)}e${exponent + 1}` : `${text}e${exponent}`;
}

function bytesText(number, places = 3) {
  if (number >= 1n << 90n) return `${powerText(number, places)} B`;
  for (const [unit, power] of BINARY) {
    if (number >= 1n << power) return `${decimal(number, 1n << power, places)} ${unit}`;
  }
  return `${number} B`;
}

function siText(number, places = 2) {
  if (number >= 10n ** 21n) return powerText(number, places);
  for (const [unit, power] of DECIMAL) {
    if (number >= 10n ** power) return `${decimal(number, 10n ** power, places)} ${unit}`;
  }
  return String(number);
}

// 131072 -> 128k, where it is a whole number of them and short.
function tokensText(number) {
  for (const [unit, power] of [["M", 20n], ["k", 10n]]) {
    if (number >= 1n << power && number % (1n << power) === 0n && number < 1n << (power + 14n)) return `${number >> power}${unit}`;
  }
  return grouped(number);
}

const LARGEST = 10n ** 18n;
const WRITTEN = /^(\d{1,3}(?:,\d{3})+|\d+(?:_\d+)*)(?:\.(\d+))?(?:[eE]\+?(\d{1,2}))? ?([A-Za-z]*)$/;
const COUNT_UNITS = { "": 1n, k: 1n << 10n, m: 1n << 20n, g: 1n << 30n };
const SIZE_UNITS = { "": 1n, b: 1n };
["k", "m", "g", "t", "p"].forEach((letter, place) => {
  SIZE_UNITS[`${letter}b`] = 10n ** (3n * BigInt(place + 1));
  SIZE_UNITS[`${letter}ib`] = 1n << (10n * BigInt(place + 1));
});

// A whole number as the command line reads it, or null: a decimal one and a unit behind it.
function wholeFrom(text, units) {
  const match = text.length <= 64 ? WRITTEN.exec(text.trim()) : null;
  const unit = match && units[match[4].toLowerCase()];
  if (!unit) return null;
  const [, whole, fraction = "", exponent = "0"] = match;
  const scaled = BigInt(whole.replace(/[,_]/g, "") + fraction) * 10n ** BigInt(exponent) * unit;
  const divisor = 10n ** BigInt(fraction.length);
  const number = scaled / divisor;
  return scaled % divisor === 0n && number >= 1n && number <= LARGEST ? number : null;
}

// 4096, 131,072, 128k = 131,072, 1M = 1,048,576, 1e6.
const countFrom = (text) => wholeFrom(text, COUNT_UNITS);

// 2GB = 2,000,000,000 bytes, 2GiB = 2,147,483,648.
const bytesFrom = (text) => wholeFrom(text, SIZE_UNITS);

// The shortest exact way to write a size.
function sizeText(number) {
  for (const [unit, power] of BINARY.slice(4)) {
    if (number % (1n << power) === 0n) return `${number >> power} ${unit}`;
  }
  return `${grouped(number)} B`;
}

function secondsText(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  const units = [["h", 3600], ["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]];
  const [unit, size] = units.find(([, size]) => seconds >= size) || units[units.length - 1];
  const number = seconds / size;
  return `${number >= 1000 ? grouped(BigInt(Math.round(number))) : number.toPrecision(3)} ${unit}`;
}
