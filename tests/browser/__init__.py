"""Tests of pages. This file makes them a package, so that fixtures with the scope `package` end with them."""
