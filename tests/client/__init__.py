"""This file makes a package of these tests, so that fixtures with the scope `package` end with them."""
