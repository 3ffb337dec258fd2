// The page of an address that has none.

import { startTheme } from "./theme.js";

startTheme();
